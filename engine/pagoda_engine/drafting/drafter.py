"""Runs a draft model: several sequences in one forward for each token that is drafted.

Each drafted token is chosen as its sequence's own next token will be, from the draft's logits with
the same random number: so where both models nearly agree, what is drawn mostly agrees too. Knows
sequences, tensors and the draft. Knows nothing of when a draft pays.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager

import numpy as np
import torch

from pagoda_engine.cache.copy_lanes import CopyLanes
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.drafting.draft_blocks import DraftBlocks, DraftPool
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling import SampleRow, plan_guesses, sample
from pagoda_engine.sampling.sampler import INVALID
from pagoda_engine.sampling.sampling_state import SamplingState
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.speculation import ForwardTime
from pagoda_kernels import plan_attention
from pagoda_kernels.host_copy import to_device

WARM_UP_TOKENS = (1, 64, 1, 16, 2, 64, 1, 4)
"""Tokens of the forwards that are timed at the start; the first two are not counted."""
_WARM_UP_ROW = SampleRow(
    SamplingState(SamplingParams(max_tokens=1, temperature=1.0), eos_token_ids=()), index=0
)
"""Drawn, which takes longer than the largest logit."""


class Drafter:
    """A draft model and its KV. Used by the step's thread alone; waits for the device.

    A sequence's KV is computed when it is asked for, from its tokens: so it does not matter who
    computed the target's. It is the base model's for adapters too, and so for their sequences a
    worse guess, no other output.

    Attributes:
        time: of its forwards, as measured, with the choice of a token for each row.
        seconds: that its forwards have taken in all.
        num_forwards: that it has run in all.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        preparing: Callable[[], AbstractContextManager[object]],
        clock: Callable[[], float],
        lanes: CopyLanes | None = None,
    ) -> None:
        """Allocate the draft's KV pool.

        Args:
            model: the draft.
            num_blocks: of its KV.
            block_size: of its KV, in tokens.
            vocab_size: of the target. Token ids mean the same in both; one of them may have more,
                as paddings differ: those are never drafted, and read as token 0.
            preparing: the device queue's context, in which its work is launched.
            clock: seconds.
            lanes: of the target's KV, so that the draft's, whose blocks nobody copies, has no
                buffers of its own.
        """
        self.time = ForwardTime()
        self.seconds = 0.0
        self.num_forwards = 0
        self._forward_seconds = 0.0  # of the latest
        self._model = model
        self._vocab_size = vocab_size
        self._preparing = preparing
        self._clock = clock
        self._pool = DraftPool(num_blocks, block_size)
        with preparing():
            self._kv_cache = KvCache(
                model.kv_layout(block_size).in_one_part(), num_blocks, model.device, lanes=lanes
            )
        self._held: dict[Sequence, DraftBlocks] = {}

    @property
    def kv_layout(self) -> KvLayout:
        """What a block of its KV is."""
        return self._kv_cache.layout

    @property
    def num_free_blocks(self) -> int:
        """Blocks of its KV that nobody has."""
        return self._pool.num_free_blocks

    def warm_up(self) -> bool:
        """Run forwards of several sizes and remember what they took. Leaves no trace.

        Returns:
            Whether the draft's logits are finite. Where its KV has no room nobody knows.
        """
        is_finite = True
        blocks = DraftBlocks()
        most = min(max(WARM_UP_TOKENS), self._model.decoder.max_positions)
        while most and not self._pool.grow(blocks, most):
            most //= 2
        for i, num_tokens in enumerate(WARM_UP_TOKENS):
            if num_tokens <= most:
                blocks.num_computed = 0
                logits = self._run([(blocks, [0] * num_tokens)], logits=True)
                self._choose(logits, [_WARM_UP_ROW], num_tokens, is_first=i > 1)
                is_finite = is_finite and bool(logits.isfinite().all())
        self._pool.free(blocks)
        self.seconds, self.num_forwards = 0.0, 0
        return is_finite

    def num_missing(self, sequence: Sequence) -> int:
        """Return how many of its tokens must be computed before one can be drafted; at least 1."""
        blocks = self._held.get(sequence)
        if blocks is None:
            return len(sequence.token_ids)
        blocks.follow(sequence.token_ids)
        return len(sequence.token_ids) - blocks.num_computed

    def has_room(self, sequence: Sequence, num_drafted: int) -> bool:
        """Take blocks for a sequence and so many drafted tokens, if there are enough.

        And tell whether the draft can be asked about so long a sequence at all.
        """
        num_tokens = len(sequence.token_ids) + num_drafted
        if num_tokens > self._model.decoder.max_positions:
            return False
        blocks = self._held.get(sequence) or DraftBlocks()
        if not self._pool.grow(blocks, num_tokens):
            return False
        self._held[sequence] = blocks
        return True

    def catch_up(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the KV of a sequence's next tokens; it `has_room`, and more are missing."""
        blocks = self._held[sequence]
        first = blocks.num_computed
        self._run([(blocks, sequence.token_ids[first : first + num_tokens])], logits=False)
        blocks.num_computed += num_tokens

    def draft(self, wanted: SequenceOf[tuple[Sequence, int]]) -> list[list[int]]:
        """Return so many tokens of each sequence, or fewer, in as many forwards.

        Args:
            wanted: sequences that `has_room` for it, all of whose tokens are known, and how many
                tokens of each, at least 1. Those that want most come first.
        """
        held = [self._held[sequence] for sequence, _ in wanted]
        drafted: list[list[int]] = [[] for _ in wanted]
        chunks = [sequence.token_ids[self._held[sequence].num_computed :] for sequence, _ in wanted]
        for place in range(wanted[0][1]):
            num_rows = sum(num > place for _, num in wanted)
            logits = self._run(list(zip(held[:num_rows], chunks, strict=False)), logits=True)
            rows = [
                SampleRow(sequence.sampling_state, sequence.num_output_tokens + place)
                for sequence, _ in wanted[:num_rows]
            ]
            chosen = self._choose(logits, rows, sum(map(len, chunks[:num_rows])))
            for blocks, chunk, tokens, token_id in zip(held, chunks, drafted, chosen, strict=False):
                if place:
                    blocks.ahead = [*blocks.ahead, *chunk]
                else:
                    blocks.num_computed += len(chunk)
                tokens.append(token_id)
            chunks = [[max(token_id, 0)] for token_id in chosen]
        return [_valid(tokens) for tokens in drafted]

    def drop(self, sequence: Sequence) -> None:
        """Take the blocks of a sequence back, if it has any."""
        blocks = self._held.pop(sequence, None)
        if blocks is not None:
            self._pool.free(blocks)

    def check_invariants(self, running: SequenceOf[Sequence]) -> None:
        """Raise AssertionError unless all blocks are free or of a sequence that runs."""
        assert self._held.keys() <= {*running}, "draft KV of a sequence that does not run"
        self._pool.check_invariants([*self._held.values()])
        for sequence, blocks in self._held.items():
            assert blocks.num_computed <= len(sequence.token_ids)

    def _run(
        self,
        chunks: SequenceOf[tuple[DraftBlocks, SequenceOf[int]]],
        *,
        logits: bool,
    ) -> torch.Tensor:
        """Compute tokens behind what each has, and return ``[S, V]`` logits of the last ones.

        Without `logits` nothing is returned; the device is done in both cases.
        """
        started = self._clock()
        seqlens = [len(tokens) for _, tokens in chunks]
        firsts = [blocks.num_computed + len(blocks.ahead) for blocks, _ in chunks]
        ends = np.cumsum(np.array(seqlens, np.int64))
        positions = np.arange(ends[-1], dtype=np.int32)
        positions += np.repeat(
            np.array(firsts, np.int32) - (ends - seqlens).astype(np.int32), seqlens
        )
        ids = np.array([token_id for _, tokens in chunks for token_id in tokens], np.int64)
        draft_size = self._model.vocab_size
        if draft_size < self._vocab_size:
            ids[ids >= draft_size] = 0
        device = self._model.device
        rows = ends - 1 if logits else ends[:0]
        with self._preparing(), torch.inference_mode():
            token_ids, on_device, wanted = to_device((ids, positions, rows), device)
            plan = plan_attention(
                seqlens_q=seqlens,
                context_lens=[first + new for first, new in zip(firsts, seqlens, strict=True)],
                block_tables=[blocks.block_ids for blocks, _ in chunks],
                block_size=self._pool.block_size,
                device=device,
            )
            decoder = self._model.decoder
            hidden = decoder.hidden(token_ids, on_device, plan, self._kv_cache, wanted)
            found = decoder.logits(hidden)[:, : self._vocab_size] if logits else hidden
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        self._forward_seconds = self._clock() - started
        self.seconds += self._forward_seconds
        self.num_forwards += 1
        return found

    def _choose(
        self,
        logits: torch.Tensor,
        rows: list[SampleRow],
        num_tokens: int,
        *,
        is_first: bool = False,
    ) -> list[int]:
        """Return a token for each row of the latest forward; what both took is learnt.

        Args:
            logits: ``[S, V]`` of that forward.
            rows: S.
            num_tokens: that it computed.
            is_first: see `ForwardTime.add`.
        """
        started = self._clock()
        with self._preparing(), torch.inference_mode():
            chosen: list[int] = sample(logits, plan_guesses(rows, self._model.device))[0].tolist()
        took = self._clock() - started
        self.seconds += took
        self.time.add(num_tokens, self._forward_seconds + took, is_first=is_first)
        return chosen


def _valid(tokens: list[int]) -> list[int]:
    """Return what comes before logits that were not finite."""
    return tokens[: tokens.index(INVALID)] if INVALID in tokens else tokens
