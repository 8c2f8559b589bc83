"""What a request wants of its output; shared by its sequences and by who writes them down."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a request wants of its output, besides the tokens' distribution.

    Attributes:
        num_choices: n.
        stops: stop strings.
        include_stop: the matched stop string stays in the text.
        num_logprobs: alternatives for each token; None = no logprobs.
        min_tokens: stop strings are not looked for before this many tokens.
        skip_special_tokens: special tokens have no text.
        return_token_ids: token ids go out beside the text.
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
