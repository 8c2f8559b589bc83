"""What a request wants of its output; shared by its sequences and by who writes them down."""

from dataclasses import dataclass

from pagoda_gateway.sequences.output.repetition import Repetition


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a request wants of its output, besides the tokens' distribution.

    Attributes:
        num_choices: sequences that run for each prompt: n, or best_of.
        num_best: so many of them, the likeliest, are the answer; None = all.
        is_search: a prompt's choices are what one beam search finds, the best first.
        stops: stop strings.
        stop_token_ids: that the body asks for; ends of the model itself are not among them.
        include_stop: the matched stop string stays in the text.
        num_logprobs: alternatives for each token; None = no logprobs.
        num_prompt_logprobs: alternatives for each prompt token but the first; None = no logprobs.
        num_echoed_logprobs: the same, where the output repeats the prompt.
        is_prompt_alone: it is all that the answer has: an engine scores it, and gives no token.
        embed: the prompt's embedding is wanted, and no token.
        min_tokens: stop strings are not looked for before this many tokens.
        skip_special_tokens: special tokens have no text.
        kept_token_ids: special tokens that have text all the same: whoever reads the output needs
            them.
        return_token_ids: token ids go out beside the text.
        repetition: what ends an output, if it ends with that; None: nothing of the kind does.
        tokens_as_ids: logprobs name tokens as "token_id:42".
    """

    num_choices: int
    stops: tuple[str, ...]
    include_stop: bool
    num_logprobs: int | None
    min_tokens: int
    skip_special_tokens: bool
    return_token_ids: bool
    tokens_as_ids: bool
    stop_token_ids: frozenset[int] = frozenset()
    kept_token_ids: frozenset[int] = frozenset()
    num_prompt_logprobs: int | None = None
    num_echoed_logprobs: int | None = None
    is_prompt_alone: bool = False
    embed: bool = False
    num_best: int | None = None
    is_search: bool = False
    repetition: Repetition | None = None

    @property
    def num_choices_field(self) -> str:
        """Name of the field that says how many sequences run for each prompt."""
        return "n" if self.num_best is None else "best_of"

    @property
    def num_engine_logprobs(self) -> int | None:
        """Alternatives that an engine must find for each token; None = no logprobs at all."""
        is_ranked = self.num_best is not None and not self.is_search
        return 0 if self.num_logprobs is None and is_ranked else self.num_logprobs

    @property
    def num_scored_logprobs(self) -> int | None:
        """Alternatives that an engine must find for each prompt token; None = none are wanted."""
        wanted = [n for n in (self.num_prompt_logprobs, self.num_echoed_logprobs) if n is not None]
        return max(wanted, default=0 if self.is_prompt_alone else None)
