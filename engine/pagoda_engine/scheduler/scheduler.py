"""Continuous batching: who waits, who runs, and how many tokens of whom the next step computes.

Knows sequences and blocks. Knows nothing of tensors, models or sampling.
"""

import bisect
import itertools
import math
from collections import deque
from dataclasses import dataclass
from operator import attrgetter

from pagoda_engine.config import EngineConfig
from pagoda_engine.scheduler.sequence import Sequence, SequenceState
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks

MAX_PASSED = 64
"""Sequences that wait for another one's blocks and are passed by those behind them, at the most."""

_BY_RANK = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Compute tokens [first_token, first_token + num_new_tokens) of a sequence.

    Attributes:
        sequence: its counts change when the step is launched, and again when it is read.
        first_token: the first token whose KV is missing.
        num_new_tokens: at least 1.
        is_prefill: the tokens were known at admission; else it is the decode of one sampled token
            and of those that a grammar forced after it.
        samples: the chunk reaches the last token, so its logits give the next one.
    """

    sequence: Sequence
    first_token: int
    num_new_tokens: int
    is_prefill: bool
    samples: bool

    @property
    def num_context_tokens(self) -> int:
        """KV tokens that its attention reads, the new ones included."""
        return self.first_token + self.num_new_tokens

    @property
    def embeds(self) -> bool:
        """Whether the hidden state of its last token is asked for."""
        return self.samples and self.sequence.request.sampling.embed

    @property
    def scored(self) -> range:
        """Prompt tokens whose logprobs its logits give: each token's come from the one before."""
        sequence = self.sequence
        if not self.is_prefill or sequence.request.sampling.num_prompt_logprobs is None:
            return range(0)
        return range(
            self.first_token + 1, min(self.num_context_tokens + 1, sequence.num_prompt_tokens)
        )


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """What one step computes, and whom it admitted or preempted on the way."""

    batch: tuple[ScheduledSequence, ...]
    reserved: tuple[Sequence, ...]
    num_preempted: int


class Scheduler:
    """Queues and the policy over them.

    Everything goes by rank: the lower priority number first, among equal ones the older. A step
    takes decodes first, then goes on with prefills that run already, then admits the sequences that
    wait, those of a lower number before a prefill goes on; one whose next block another one is
    making waits for it and is passed. Admission reserves the blocks of all tokens known so far, so
    only decodes ever ask for more; when none is left, the last of the running sequences loses its
    blocks and goes back to its place in the queue. Its tokens are kept, so it goes on as if nothing
    had happened. Nobody loses blocks or a seat to one that waits, whatever its priority.

    ``max_num_seqs`` caps the running and importing sequences together, and so does the budget of
    tokens: each of them is in a step sooner or later. Held ones are in none and do not count.
    """

    def __init__(self, config: EngineConfig, blocks: SequenceBlocks) -> None:
        self.blocks = blocks
        # No more decodes than one step can take, or the last would never be in one.
        self._max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._sequences: dict[str, Sequence] = {}
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.importing: dict[str, Sequence] = {}
        self.held: dict[str, Sequence] = {}

    def get(self, sequence_id: str) -> Sequence | None:
        """Return a sequence that waits, imports, runs or is held."""
        return self._sequences.get(sequence_id)

    def __len__(self) -> int:
        """Number of sequences in any of the states."""
        return len(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._sequences[sequence.sequence_id] = sequence
        self._queue(sequence)

    def schedule(self) -> ScheduledStep:
        """Choose the next step's batch. Blocks and queues change; token counts do not."""
        batch: list[ScheduledSequence] = []
        reserved: list[Sequence] = []
        budget, num_preempted = self._schedule_decodes(batch)
        for sequence in [s for s in self.running if s.is_prefilling]:
            if not num_preempted:
                budget = self._admit(batch, budget, reserved, before=sequence.priority)
            if budget:
                budget -= self._schedule_chunk(sequence, budget, batch)
        # Who was just preempted would be admitted at once and preempted again.
        if not num_preempted:
            self._admit(batch, budget, reserved)
        return ScheduledStep(tuple(batch), tuple(reserved), num_preempted)

    def start_running(self, sequence: Sequence) -> None:
        """Let a sequence whose blocks are reserved take part in steps."""
        self.importing.pop(sequence.sequence_id, None)
        sequence.is_import_pending = False
        sequence.state = SequenceState.RUNNING
        bisect.insort(self.running, sequence, key=_BY_RANK)

    def hold(self, sequence: Sequence) -> None:
        """Take a sequence out of the steps and keep its blocks."""
        self.running.remove(sequence)
        sequence.leave_steps(SequenceState.HELD)
        self.held[sequence.sequence_id] = sequence

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence in any state; its blocks are free on return."""
        match sequence.state:
            case SequenceState.WAITING:
                self.waiting.remove(sequence)
            case SequenceState.IMPORTING:
                del self.importing[sequence.sequence_id]
            case SequenceState.RUNNING:
                self.running.remove(sequence)
            case SequenceState.HELD:
                del self.held[sequence.sequence_id]
            case SequenceState.FINISHED:
                raise AssertionError(f"sequence {sequence.sequence_id!r} finished twice")
        if sequence.block_ids:
            self.blocks.free(sequence)
        sequence.leave_steps(SequenceState.FINISHED)
        del self._sequences[sequence.sequence_id]

    def has_work(self) -> bool:
        """Tell whether `schedule` would choose or admit anything."""
        return bool(self.running) or self._can_admit()

    def _schedule_decodes(self, batch: list[ScheduledSequence]) -> tuple[int, int]:
        """Give every decode its token; forced ones come out of what that leaves of the budget.

        Returns:
            The tokens that are left, and how many sequences were preempted.
        """
        num_preempted = 0
        budget = self._max_num_batched_tokens - sum(s.is_decoding for s in self.running)
        for sequence in self.running.copy():
            # A victim of another sequence is no longer running; it ranks behind that one, so it is
            # not in the batch yet.
            if sequence.state is not SequenceState.RUNNING or not sequence.is_decoding:
                continue
            while self.blocks.needs_block(sequence):
                if self.blocks.grow(sequence):
                    continue
                num_preempted += 1
                if self._preempt_last() is sequence:
                    break
            else:
                budget -= self._schedule_chunk(sequence, budget + 1, batch) - 1
        return budget, num_preempted

    def _schedule_chunk(
        self, sequence: Sequence, budget: int, batch: list[ScheduledSequence]
    ) -> int:
        missing = sequence.num_uncomputed_tokens
        num_new_tokens = min(missing, budget)
        batch.append(
            ScheduledSequence(
                sequence,
                first_token=sequence.num_launched_tokens,
                num_new_tokens=num_new_tokens,
                is_prefill=sequence.is_prefilling,
                samples=num_new_tokens == missing,
            )
        )
        return num_new_tokens

    def _preempt_last(self) -> Sequence:
        """Take the blocks of one sequence away. Only a decode asks, so there is always one."""
        victim = next(s for s in reversed(self.running) if s.is_preemptible)
        self.running.remove(victim)
        self.blocks.free(victim)
        victim.state = SequenceState.WAITING
        self._queue(victim)
        return victim

    def _queue(self, sequence: Sequence) -> None:
        """Let a sequence wait in front of all who rank behind it."""
        bisect.insort(self.waiting, sequence, key=_BY_RANK)

    def _admit(
        self,
        batch: list[ScheduledSequence],
        budget: int,
        reserved: list[Sequence],
        *,
        before: float = math.inf,
    ) -> int:
        """Admit who waits with a priority number below `before`; return what is left of the budget.

        Who gets blocks for the first time is put into `reserved`.
        """
        while self.waiting and self.waiting[0].priority < before and self._has_seat():
            sequence = self._first_in_line()
            if sequence is None or sequence.priority >= before:
                break
            if sequence.num_unread_tokens or (not budget and not sequence.is_import_pending):
                break
            if not self.blocks.reserve(sequence, self._num_spare_blocks()):
                break
            self.waiting.remove(sequence)
            if not sequence.was_reserved:
                sequence.was_reserved = True
                reserved.append(sequence)
            if sequence.is_import_pending:
                sequence.state = SequenceState.IMPORTING
                self.importing[sequence.sequence_id] = sequence
            else:
                self.start_running(sequence)
                budget -= self._schedule_chunk(sequence, budget, batch)
        return budget

    def _can_admit(self) -> bool:
        if not self.waiting or not self._has_seat():
            return False
        sequence = self._first_in_line()
        if sequence is None or sequence.num_unread_tokens:
            return False
        return self.blocks.can_reserve(sequence, self._num_spare_blocks())

    def _first_in_line(self) -> Sequence | None:
        """Return the first that waits for nothing but blocks, a seat and budget.

        Those with a prefix that another one is making let others pass: they will find it cached.
        """
        line = itertools.islice(self.waiting, MAX_PASSED + 1)
        return next((s for s in line if not self.blocks.should_wait(s)), None)

    def _has_seat(self) -> bool:
        return len(self.running) + len(self.importing) < self._max_num_seqs

    def _num_spare_blocks(self) -> int:
        """Blocks that an admission leaves free, so that it does not cause a preemption soon.

        Each running sequence asks for at most one block in block_size steps, but for what grammars
        force. With none running nothing is spared: else a sequence as large as the pool would wait
        for ever.
        """
        if not self.running:
            return 0
        growing = sum(self.blocks.may_grow(sequence) for sequence in self.running)
        return growing + self.blocks.pool.num_blocks // 100

    def check_invariants(self) -> None:
        """Recount queues, states and block ownership from first principles."""
        queues = [
            (SequenceState.WAITING, list(self.waiting)),
            (SequenceState.IMPORTING, list(self.importing.values())),
            (SequenceState.RUNNING, self.running),
            (SequenceState.HELD, list(self.held.values())),
        ]
        queued = [s for _, queue in queues for s in queue]
        assert len(queued) == len(self._sequences) == len({s.sequence_id for s in queued})
        assert all(self._sequences[s.sequence_id] is s for s in queued)
        assert all(s.state is state for state, queue in queues for s in queue)
        assert [*self.waiting] == sorted(self.waiting, key=_BY_RANK), "the queue lost its order"
        assert self.running == sorted(self.running, key=_BY_RANK), "the batch lost its order"
        assert len(self.running) + len(self.importing) <= self._max_num_seqs
        ref_counts: dict[int, int] = {}
        for sequence in queued:
            self._check_sequence(sequence)
            for block_id in sequence.block_ids:
                ref_counts[block_id] = ref_counts.get(block_id, 0) + 1
        self.blocks.check_invariants(queued)
        self.blocks.pool.check_invariants(ref_counts)

    def _check_sequence(self, sequence: Sequence) -> None:
        size = self.blocks.block_size
        num_tokens, num_computed = sequence.num_tokens, sequence.num_computed_tokens
        num_launched = sequence.num_launched_tokens
        assert num_launched <= len(sequence.block_ids) * size, "KV without a block"
        assert num_computed <= min(num_launched, len(sequence.token_ids))
        assert sequence.num_registered_blocks * size <= num_computed
        if sequence.state is SequenceState.WAITING:
            assert not sequence.block_ids
            assert num_launched == 0
            return
        assert len(set(sequence.block_ids)) == len(sequence.block_ids)
        assert num_launched < num_tokens or sequence.has_ended, "nothing left to compute"
        # With max_tokens 0 one token is sampled all the same.
        assert num_tokens <= max(sequence.max_num_tokens, sequence.num_prompt_tokens + 1)
        if sequence.state is SequenceState.RUNNING and not sequence.is_prefilling:
            has_forced = sequence.num_uncomputed_tokens > 1
            assert not has_forced or sequence.request.token_mask, "a decode fell behind"
        assert sequence.num_cached_tokens % size == 0
        assert sequence.num_cached_tokens <= num_computed
        # Blocks that this sequence may still write are its own.
        for block_id in sequence.block_ids[num_computed // size :]:
            assert self.blocks.pool.ref_count(block_id) == 1, f"block {block_id} is shared"
