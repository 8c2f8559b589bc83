"""What the sampler must remember of one sequence from token to token.

Knows the tokens so far and the parameters. Knows nothing of logits or of other sequences.
"""

from collections.abc import Collection, Sequence

import torch

from pagoda.engine.sampling.philox import UniformSource
from pagoda.engine.sampling_params import SamplingParams


class SamplingState:
    """Parameters, random numbers and token counts of one sequence.

    Attributes:
        params: what the caller asked.
        num_output_tokens: output tokens so far; also the index of the next one.
        stop_token_ids: tokens that end the output, EOS included unless it is ignored.
        has_penalties: a repetition, frequency or presence penalty is on.
        is_plain: greedy, and nothing but ``min_tokens`` could change or must report a logit.
    """

    __slots__ = (
        "_output_counts",
        "_prompt_mask",
        "_source",
        "_tokens",
        "_vocab_size",
        "has_penalties",
        "is_plain",
        "num_output_tokens",
        "params",
        "stop_token_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        eos_token_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        self.params = params
        self.num_output_tokens = len(output_token_ids)
        stop_token_ids = {*params.stop_token_ids}
        if not params.ignore_eos:
            stop_token_ids.update(eos_token_ids)
        self.stop_token_ids = tuple(sorted(stop_token_ids))
        self.has_penalties = (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )
        self.is_plain = (
            params.temperature == 0.0
            and not self.has_penalties
            and not params.logit_bias
            and params.num_logprobs is None
        )
        self._source = UniformSource(params.seed)
        self._vocab_size = vocab_size
        self._tokens = (prompt_token_ids, output_token_ids) if self.has_penalties else None
        self._output_counts: torch.Tensor | None = None
        self._prompt_mask: torch.Tensor | None = None

    @property
    def uniform(self) -> float:
        """The random number in [0, 1) of the next output index."""
        return self._source.at(self.num_output_tokens)

    @property
    def must_not_stop(self) -> bool:
        """Whether the next token is one of the first ``min_tokens``."""
        return self.num_output_tokens < self.params.min_tokens and bool(self.stop_token_ids)

    def counts(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (``[V]`` float32 output counts, ``[V]`` bool prompt membership) for the penalties.

        Both live on `device` from the first call on and are kept up to date by `append`.
        """
        if self._output_counts is None or self._prompt_mask is None:
            with torch.inference_mode(False):  # `append` changes them outside of a step's forward
                self._count(device)
        assert self._output_counts is not None
        assert self._prompt_mask is not None
        return self._output_counts, self._prompt_mask

    def append(self, token_id: int) -> None:
        """Count one output token."""
        self.num_output_tokens += 1
        if self._output_counts is not None:
            self._output_counts[token_id] += 1.0
        elif self._tokens is not None:  # an imported first token: nothing was counted yet
            prompt, output = self._tokens
            self._tokens = (prompt, (*output, token_id))

    def _count(self, device: torch.device) -> None:
        assert self._tokens is not None
        prompt, output = (torch.tensor(ids, dtype=torch.int64) for ids in self._tokens)
        self._prompt_mask = (torch.bincount(prompt, minlength=self._vocab_size) > 0).to(device)
        counts = torch.bincount(output, minlength=self._vocab_size)
        self._output_counts = counts.to(device, torch.float32)
        self._tokens = None
