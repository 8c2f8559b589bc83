"""A scheduler without a model: KV is what it would be, and every read of it is checked.

A slot that was shared, evicted, overwritten or left unwritten by mistake holds something else than
the sequence expects (see `imaginary_model`).

With a lag, a step is launched before the tokens of the one before are read, as on a GPU. The
simulated device computes a step at the last moment, when it is read: by then the host has changed
whatever it might change.
"""

import itertools
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from pagoda_engine import EngineConfig, SequenceOutput
from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.cache.layer_groups import layer_groups
from pagoda_engine.cache.windowed_parts import place_table
from pagoda_engine.errors import InvalidSequenceError
from pagoda_engine.sampling.sampler import SampledToken
from pagoda_engine.sampling.sampling_state import SamplingState
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_engine.scheduler import ScheduledStep, Scheduler, Sequence
from pagoda_engine.scheduler.beams import Beams
from pagoda_engine.scheduler.proposing.drafter import Drafter
from pagoda_engine.scheduler.proposing.drafts import Drafts
from pagoda_engine.scheduler.proposing.speculator import Speculator
from pagoda_engine.scheduler.sequence_blocks import SequenceBlocks
from pagoda_engine.scheduler.step_counts import StepCounts
from pagoda_engine.scheduler.tenants.victims import Holdings
from pagoda_engine.sequence_request import KvSource, SequenceRequest
from pagoda_engine.speculation import MakeProposer
from pagoda_engine.step.commit import commit_step
from pagoda_engine.step.launched import ReadStep, verified
from pagoda_engine.step.result import ComputedBlocks
from pagoda_engine.validation import check_request
from support.engine_driver import hash_block
from support.imaginary_model import EOS, VOCAB_SIZE, candidates, kvs_of, search_of, token_after

NUM_WINDOWED_PARTS = 2
"""Of a block, where it has any."""


class CountedAgain(StepCounts):
    """Counts again whatever a step has counted once."""

    def holdings(self) -> Holdings:
        held = super().holdings()
        flows = self._queues.flows
        holders = itertools.chain(self._queues.running, self._queues.importing.values())
        again = Holdings(flows, holders, self._blocks.num_places)
        for flow in flows:
            assert held.num_sequences(flow) == again.num_sequences(flow)
            assert held.seats(flow) == again.seats(flow)
            assert held.places(flow) == again.places(flow)
        return held

    def growing(self) -> int:
        growing = super().growing()
        assert growing == sum(map(self._blocks.num_growing, self._queues.running))
        return growing


@dataclass(frozen=True)
class Row:
    """What the device was told of one sequence."""

    sequence: Sequence
    known_tokens: list[int]
    proposed: tuple[int, ...]
    block_ids: list[int]
    first_token: int
    end: int
    samples: bool
    copies: list[tuple[int, int]]
    places: list[list[int]]


@dataclass
class Simulation:
    """Steps a scheduler; `slots[block][offset]` is the modelled KV."""

    config: EngineConfig
    outputs: dict[str, list[SequenceOutput]] = field(default_factory=dict)
    computed: list[ComputedBlocks] = field(default_factory=list)
    exported: list[ComputedBlocks] = field(default_factory=list)  # of sequences that are not over
    lag: int = 0
    make_proposer: MakeProposer | None = None
    drafter: Drafter | None = None
    window: int | None = None  # a token's query sees so many
    part_window: int | None = None  # so many in the windowed parts of blocks
    num_accepted: int = 0
    num_proposed: int = 0
    num_preempted: int = 0
    num_fetched: int = 0
    num_evicted: int = 0
    lower: dict[bytes, list[int]] = field(default_factory=dict)  # tier below: hash -> its KV
    lower_is_lossy: bool = False
    num_beam_rows: int = 0
    num_arrivals: int = 0
    num_null_blocks: int = 0  # of all steps together
    num_dropped_parts: int = 0  # as well
    num_given_up: int = 0
    in_flight: deque[tuple[ScheduledStep, list[Row]]] = field(default_factory=deque)
    sampled: dict[Sequence, int] = field(default_factory=dict)  # in the step computed last

    def __post_init__(self) -> None:
        num_places, self.parts = self.config.num_blocks, None
        if self.part_window is not None:
            num_places *= 1 + NUM_WINDOWED_PARTS
            self.parts = place_table(num_places, NUM_WINDOWED_PARTS)
        self.pool = BlockPool(self.config.num_blocks, part_places=self.parts)
        blocks = SequenceBlocks(
            self.pool,
            block_size=self.config.block_size,
            hash_block=hash_block,
            enable_prefix_caching=self.config.enable_prefix_caching,
            window=self.window,
            part_window=self.part_window,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
        )
        speculator, num_tokens, overlaps = None, self.config.num_speculative_tokens, self.lag > 0
        if self.make_proposer is not None:
            drafts = None
            if self.drafter is not None:
                drafts = Drafts(self.drafter, num_tokens, overlaps=overlaps)
            speculator = Speculator(
                num_tokens, overlaps=overlaps, make_proposer=self.make_proposer, drafts=drafts
            )
        self.scheduler = Scheduler(self.config, blocks, speculator)
        self.scheduler._counts.__class__ = CountedAgain
        self.scheduler.match_lower = self.match_lower
        self.slots = [[0] * self.config.block_size for _ in range(num_places)]

    def add(self, request: SequenceRequest) -> Sequence:
        state = SamplingState(request.sampling, eos_token_ids={EOS})
        self.num_arrivals += 1
        search = search_of(request, self.config.max_model_len)
        sequence = Sequence(
            request,
            self.num_arrivals,
            max_model_len=self.config.max_model_len,
            sampling_state=state,
            is_import_pending=request.kv_source is not KvSource.COMPUTE,
            beams=None if search is None else Beams(search),
        )
        self.scheduler.add(sequence)
        return sequence

    def accepts(self, request: SequenceRequest) -> bool:
        """Tell whether an engine with this pool would let a request in."""
        groups = None
        if self.part_window is not None:
            groups = layer_groups((*[self.part_window] * NUM_WINDOWED_PARTS, None))
        config = self.config
        try:
            check_request(
                request,
                config,
                max_model_len=config.max_model_len,
                vocab_size=VOCAB_SIZE,
                groups=groups,
            )
        except InvalidSequenceError:
            return False
        return True

    def step(self) -> ScheduledStep:
        scheduled = self.scheduler.schedule()
        self.num_preempted += scheduled.num_preempted
        self.keep(scheduled)
        if not self.lag and scheduled.has_imports:  # as in `Engine.step`: whoever imports is told
            scheduled = replace(scheduled, batch=())
            self.scheduler.not_computed()
        if scheduled.batch:
            self.in_flight.append((scheduled, self.launch(scheduled)))
        if self.in_flight and (len(self.in_flight) > self.lag or not scheduled.batch):
            self.read(*self.in_flight.popleft())
        self.scheduler.check_invariants()
        self.check_exports()
        self.num_evicted += len(self.pool.take_events()[1])
        for sequence in (*self.scheduler.running, *self.scheduler.held.values()):
            num_computed = sequence.num_computed_tokens
            if sequence.beams is not None:  # partly filled ones are copied before the next step
                num_computed -= num_computed % self.config.block_size
            for member in sequence.members:
                first = member.num_null_blocks * self.config.block_size
                self.check_kv(member.token_ids[:num_computed], member.block_ids, first)
                held = member.windowed
                tokens = member.token_ids[: min(num_computed, held.stop * self.config.block_size)]
                first = held.start * self.config.block_size
                self.check_parts(tokens, self.places(member.block_ids, held), first)
                self.num_dropped_parts += held.start
            self.num_null_blocks += sequence.num_null_blocks
        return scheduled

    def match_lower(self, block_hashes: SequenceOf[bytes]) -> int:
        return sum(1 for _ in itertools.takewhile(self.lower.__contains__, block_hashes))

    def keep(self, scheduled: ScheduledStep) -> None:
        """Copy to the tier below what is worth it; check what is to be fetched from there."""
        for preemption in scheduled.preempted:
            for block_hash, block_id in preemption.blocks if preemption.is_worth_keeping else ():
                if not self.lower_is_lossy or block_hash[0] % 8:
                    self.lower[block_hash] = list(self.slots[block_id])
        for resumption in scheduled.resumed:
            sequence = self.scheduler.get(resumption.sequence_id)
            assert sequence is not None
            assert sequence.is_import_pending == bool(resumption.fetched)
            kvs, first = kvs_of(sequence.token_ids), resumption.num_cached_tokens
            fetched = [kv for block_hash in resumption.fetched for kv in self.lower[block_hash]]
            assert fetched == kvs[first : first + len(fetched)]
            self.num_fetched += len(resumption.fetched)

    def has_work(self) -> bool:
        return bool(self.in_flight) or self.scheduler.has_work()

    def launch(self, scheduled: ScheduledStep) -> list[Row]:
        rows = []
        num_tokens = sum(entry.num_new_tokens for entry in scheduled.batch)
        assert num_tokens <= self.config.max_num_batched_tokens
        assert sum(entry.num_rows for entry in scheduled.batch) <= self.config.max_num_rows
        for i, entry in enumerate(scheduled.batch):
            sequence, end = entry.sequence, entry.num_context_tokens
            assert sequence.num_unread_tokens <= self.lag
            known, block_ids = sequence.token_ids[:end], list(sequence.block_ids)
            proposed = entry.proposed
            assert sequence.beams is None or not proposed, "a beam search was proposed tokens"
            copies = [] if sequence.beams is None else sequence.beams.take_copies()
            if self.parts is not None:
                copies += [
                    (int(source), int(target))
                    for pair in copies
                    for source, target in zip(*self.parts[[*pair]], strict=True)
                ]
            places = self.places(block_ids, sequence.windowed)
            first, samples = entry.first_token, entry.samples
            rows.append(
                Row(sequence, known, proposed, block_ids, first, end, samples, copies, places)
            )
            row = i if entry.samples else None
            sequence.launch(entry.num_new_tokens, row=row, num_proposed=len(proposed))
        return rows

    def read(self, scheduled: ScheduledStep, rows: list[Row]) -> None:
        """Compute a step and tell the host what was sampled."""
        sampled, accepted = {}, []
        for source, target in (copy for row in rows for copy in row.copies):
            self.slots[target] = list(self.slots[source])
        for row in rows:
            tokens = row.known_tokens
            if len(tokens) + len(row.proposed) < row.end:
                tokens = [*tokens, self.sampled[row.sequence]]
            num_known = len(tokens)
            tokens = [*tokens, *row.proposed]
            assert len(tokens) == row.end
            self.check_kv(tokens[: row.first_token], row.block_ids, self.seen_from(row.first_token))
            if self.part_window is not None:
                first_seen = max(0, row.first_token + 1 - self.part_window)
                self.check_parts(tokens[: row.first_token], row.places, first_seen)
            self.write_kv(tokens, row.block_ids, row.first_token)
            self.write_parts(tokens, row.places, row.first_token)
            if row.samples and row.sequence.beams is not None:
                best = candidates(tokens)
                logprobs = TokenLogprobs(*best[0], tuple(best))
                accepted.append([SampledToken(best[0][0], logprobs)])
                self.num_beam_rows += 1
            elif row.samples:
                ends = range(num_known, len(tokens) + 1)
                found = [
                    SampledToken(token_after(row.sequence.request, tokens[:end])) for end in ends
                ]
                accepted.append(verified(row.proposed, found))
                sampled[row.sequence] = found[0].token_id
                self.num_proposed += len(row.proposed)
                self.num_accepted += len(accepted[-1]) - 1
        self.sampled = sampled
        read = ReadStep(accepted, [], [])
        outputs, computed = commit_step(self.scheduler, scheduled.batch, read)
        for output in outputs:
            if output.token_ids or output.finish_reason is not None:  # else a search has begun
                self.outputs.setdefault(output.sequence_id, []).append(output)
        self.computed += computed
        self.exported += computed

    def finish_import(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Do what `Engine.import_finished` does without a first token."""
        tokens = sequence.token_ids[:num_computed_tokens]
        first = max(sequence.num_cached_tokens, sequence.num_null_blocks * self.config.block_size)
        self.write_kv(tokens, sequence.block_ids, first)
        self.write_parts(tokens, self.places(sequence.block_ids, sequence.windowed), first)
        computed = min(num_computed_tokens, len(sequence.token_ids) - 1)
        sequence.num_computed_tokens = sequence.num_launched_tokens = computed
        self.scheduler.blocks.register_computed(sequence)
        if self.scheduler.blocks.lacks_window(sequence):
            self.scheduler.give_up_import(sequence)
            self.num_given_up += 1
        else:
            self.scheduler.start_running(sequence)

    def seen_from(self, position: int) -> int:
        """Return the first position that a query at `position` sees."""
        return 0 if self.window is None else max(0, position + 1 - self.window)

    def write_kv(self, tokens: list[int], block_ids: list[int], first: int) -> None:
        size = self.config.block_size
        kvs = kvs_of(tokens)
        for position in range(first, len(tokens)):
            self.slots[block_ids[position // size]][position % size] = kvs[position]

    def check_kv(self, tokens: list[int], block_ids: list[int], first: int = 0) -> None:
        first_block, start = divmod(first, self.config.block_size)
        blocks = (self.slots[block_id] for block_id in block_ids[first_block:])
        found = list(itertools.chain.from_iterable(blocks))[start : start + len(tokens) - first]
        expected = kvs_of(tokens)[first:]
        if found != expected:
            at = [pair[0] == pair[1] for pair in zip(found, expected, strict=True)].index(False)
            raise AssertionError(f"wrong KV of {tokens} at {first + at}")

    def places(self, block_ids: list[int], held: range) -> list[list[int]]:
        """Return where the windowed parts of blocks are, none for those that are not held."""
        if self.parts is None:
            return []
        places = self.parts[block_ids].tolist()
        return [each if i in held else [] for i, each in enumerate(places)]

    def write_parts(self, tokens: list[int], places: list[list[int]], first: int) -> None:
        size = self.config.block_size
        for position, kv in enumerate(kvs_of(tokens)[first:] if places else (), first):
            for place in places[position // size]:
                self.slots[place][position % size] = kv

    def check_parts(self, tokens: list[int], places: list[list[int]], first: int) -> None:
        size = self.config.block_size
        for position, expected in enumerate(kvs_of(tokens)[first:] if places else (), first):
            found = [self.slots[place][position % size] for place in places[position // size]]
            assert found == [expected] * NUM_WINDOWED_PARTS, f"wrong parts at {position}"

    def check_exports(self) -> None:
        """Blocks that were named for export stay with their sequence until it is released."""
        self.exported = [c for c in self.exported if self.scheduler.get(c.sequence_id)]
        for computed in self.exported:
            sequence = self.scheduler.get(computed.sequence_id)
            assert sequence is not None
            first, end = computed.first_block, computed.first_block + len(computed.block_ids)
            skip = max(0, sequence.request.first_export_block - first)
            assert sequence.block_ids[first + skip : end] == list(computed.block_ids)[skip:]
            assert sequence.num_null_blocks <= sequence.request.first_export_block
            if self.part_window is not None:
                seen_from = (len(sequence.token_ids) - 1) // self.config.block_size
                seen_from = seen_from * self.config.block_size + 1 - self.part_window
                assert sequence.windowed.start <= max(0, seen_from) // self.config.block_size

    def tokens(self, sequence_id: str) -> list[int]:
        """Return the output tokens so far, having checked their indices."""
        tokens: list[int] = []
        for output in self.outputs.get(sequence_id, []):
            assert output.first_index == self.outputs[sequence_id][0].first_index + len(tokens)
            tokens.extend(output.token_ids)
        return tokens


def make_simulation(
    *,
    lag: int = 0,
    make_proposer: MakeProposer | None = None,
    drafter: Drafter | None = None,
    window: int | None = None,
    part_window: int | None = None,
    **fields: object,
) -> Simulation:
    """Return a simulation of a small pool; `fields` are settings of the engine."""
    values = {"block_size": 4, "num_blocks": 32, "max_num_seqs": 8, "max_model_len": 64}
    if make_proposer is not None:
        values["speculation"] = "ngram"  # of whose proposer the other one takes the place
    config = EngineConfig(**{**values, **fields})
    return Simulation(
        config,
        lag=lag,
        make_proposer=make_proposer,
        drafter=drafter,
        window=window,
        part_window=part_window,
    )
