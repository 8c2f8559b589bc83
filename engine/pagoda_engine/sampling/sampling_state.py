"""What sampling must know of one sequence from token to token.

Knows parameters and, for the penalties, token counts and repetitions.
Knows nothing of logits or of other sequences.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from pagoda_engine.sampling.repeat_penalties import Changes, RepeatPenalties
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.token_mask import TokenBits, token_bits
from pagoda_kernels import LogitBias, SeenTokens, sampling_column
from pagoda_kernels.host_copy import to_device


class SamplingState:
    """Parameters and token counts of one sequence.

    Attributes:
        params: what the caller asked.
        stop_token_ids: tokens that end the output, EOS included unless it is ignored.
        has_penalties: a repetition, frequency or presence penalty is on.
        penalises_repeats: DRY or the LZ penalty is on. Each token must be known before the next.
        column: of the parameters, for the sampler.
        is_greedy: takes the largest logit.
        is_plain: nothing but ``min_tokens`` or a mask could change or must report a logit.
        counts: for the penalties; None until the first token is sampled and after the last.
    """

    __slots__ = (
        "_allowed",
        "_bias",
        "_repeats",
        "_stops",
        "column",
        "counts",
        "has_penalties",
        "is_greedy",
        "is_plain",
        "params",
        "penalises_repeats",
        "stop_token_ids",
    )

    def __init__(self, params: SamplingParams, *, eos_token_ids: Collection[int]) -> None:
        self.params = params
        stop_token_ids = {*params.stop_token_ids}
        if not params.ignore_eos:
            stop_token_ids.update(eos_token_ids)
        self.stop_token_ids = tuple(sorted(stop_token_ids))
        self.has_penalties = (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )
        self.penalises_repeats = bool(params.dry_multiplier or params.lz_penalty)
        self.is_greedy = params.temperature == 0.0
        self.is_plain = (
            not self.has_penalties
            and not self.penalises_repeats
            and not params.logit_bias
            and params.num_logprobs is None
        )
        self.column = sampling_column(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            top_n_sigma=params.top_n_sigma,
            typical_p=params.typical_p,
            xtc_threshold=params.xtc_threshold,
            xtc_probability=params.xtc_probability,
        )
        self.counts: TokenCounts | SeenTokens | None = None
        self._allowed: TokenBits | None = None
        self._bias: LogitBias | None = None
        self._stops: torch.Tensor | None = None
        self._repeats: RepeatPenalties | None = None

    def allowed(self, vocab_size: int) -> TokenBits:
        """Return ``allowed_token_ids``, or all of `vocab_size` tokens; not to be changed."""
        if self._allowed is None:
            token_ids = self.params.allowed_token_ids or range(vocab_size)
            self._allowed = token_bits(token_ids, vocab_size)
        return self._allowed

    def bias(self, device: torch.device) -> LogitBias:
        """Return ``logit_bias``, copied there at the first call."""
        if self._bias is None:
            self._bias = LogitBias(self.params.logit_bias, device)
        return self._bias

    def stops(self, device: torch.device) -> torch.Tensor:
        """Return ``stop_token_ids`` as int64, copied there at the first call."""
        if self._stops is None:
            (self._stops,) = to_device([np.array(self.stop_token_ids, np.int64)], device)
        return self._stops

    def repeat_changes(self, token_ids: Sequence[int], vocab_size: int) -> Changes | None:
        """Return what DRY and the LZ penalty add to the next token's logits; None if they are off.

        Args:
            token_ids: all tokens of the sequence; some more at each call.
            vocab_size: of the model.
        """
        if not self.penalises_repeats:
            return None
        if self._repeats is None:
            self._repeats = RepeatPenalties(self.params, vocab_size)
        return self._repeats.changes(token_ids)

    def leave_device(self) -> None:
        """Drop all memory for steps: nothing is sampled any more, or not for a while."""
        self.counts = self._bias = self._stops = self._repeats = None


def count_tokens(
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    vocab_size: int,
    device: torch.device,
) -> "TokenCounts | SeenTokens":
    """Count a sequence's tokens for its penalties, in the form that sampling on `device` wants.

    A GPU takes vectors of the vocabulary's size, which no step waits for. On a CPU they cost
    several times the draw where the vocabulary is large.
    """
    if device.type != "cpu":
        return TokenCounts(prompt_token_ids, output_token_ids, vocab_size, device)
    return SeenTokens(
        prompt_token_ids,
        output_token_ids,
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
    )


class TokenCounts:
    """How often each token is in the output, and which are in the prompt: vectors for a GPU.

    Made by the step loop, afterwards used by steps' work alone: each step counts what it sampled
    itself, on the device, so the next one need not wait for the host to know the token.

    Attributes:
        in_output: ``[V]`` float32 counts.
        in_prompt: ``[V]`` bool.
    """

    __slots__ = ("in_output", "in_prompt")

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """Count the tokens known so far."""
        in_prompt = np.zeros(vocab_size, dtype=np.bool_)
        in_prompt[np.array(prompt_token_ids, dtype=np.int64)] = True
        in_output = np.bincount(np.array(output_token_ids, dtype=np.int64), minlength=vocab_size)
        arrays = in_output.astype(np.float32), in_prompt
        self.in_output, self.in_prompt = to_device(arrays, device)

    def add(self, token_id: torch.Tensor) -> None:
        """Count one output token, int64 ``[1]`` on the device of the counts."""
        self.in_output.index_add_(0, token_id, self.in_output.new_ones(1))
