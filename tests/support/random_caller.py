"""Calls a simulated scheduler at random, and knows what must come of it."""

import math
import random
from collections import Counter
from dataclasses import replace

from pagoda_engine import BeamSearchParams, KvSource, SamplingParams
from pagoda_engine.scheduler import Sequence, SequenceState
from support.engine_driver import make_request
from support.imaginary_model import ForcesRuns, OftenRight, expected_hypotheses, expected_output
from support.scheduler_simulation import make_simulation
from support.simulated_drafter import SimulatedDrafter

MOST_WAITING = 12
"""Beside whom a caller of everything adds nobody, since recounting them is most of its time."""


class RandomCaller:
    """Adds, aborts, imports and releases at random, and remembers what must come out."""

    def __init__(
        self,
        seed: int,
        *,
        lag: int,
        enable_prefix_caching: bool,
        num_tenants: int = 1,
        speculates: bool = False,
        searches: bool = False,
        fetches: bool = False,
        window: int | None = None,
        part_window: int | None = None,
        everything: bool = False,
    ) -> None:
        """Begin with nobody.

        Args:
            seed: of all that is random.
            lag: see `Simulation`.
            enable_prefix_caching: setting of the engine.
            num_tenants: whose requests these are.
            speculates: with a proposer that is often right.
            searches: some requests are beam searches.
            fetches: what is preempted is kept in a lower tier, which loses some of it.
            window: see `Simulation`.
            part_window: see `Simulation`.
            everything: all that, a draft model, several choices of a prompt, and deadlines.
        """
        speculates, searches = speculates or everything, searches or everything
        fetches = fetches or everything
        self.rng = random.Random(seed)
        proposer_rng = random.Random(seed)
        self.tenants = [bytes([i]) for i in range(num_tenants)]
        self.searches = searches
        self.idle_steps: Counter[Sequence] = Counter()
        is_wide = speculates or searches
        num_blocks = self.rng.choice([12, 16, 24])
        num_seqs = self.rng.choice([5, 9, 16] if is_wide else [2, 5, 9])
        num_tokens = self.rng.choice([8, 40] if is_wide else [3, 8, 40])
        if everything:  # so that of each kind there is something
            num_blocks, num_seqs, num_tokens = 24, 9, 24
        self.simulation = make_simulation(
            num_blocks=num_blocks,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_tokens,
            max_model_len=44,
            enable_prefix_caching=enable_prefix_caching,
            num_speculative_tokens=self.rng.choice([3, 9]),
            make_proposer=(lambda ids, _: OftenRight(ids, proposer_rng)) if speculates else None,
            drafter=(
                SimulatedDrafter(base=0.05, per_token=0.01, right=0.8, num_blocks=3)
                if everything
                else None
            ),
            lag=lag,
            window=window,
            part_window=part_window,
        )
        cost = self.simulation.scheduler.step_cost
        if speculates:  # wherever there is room
            cost = replace(cost, per_proposed_token=0.01, is_seconds=everything)
        if fetches:
            self.simulation.lower_is_lossy = True
            per_block = self.rng.choice([0.1, 0.5])
            cost = replace(cost, fetch_base=0.4, per_fetched_block=per_block)
        self.simulation.scheduler.step_cost = cost
        self.forks = random.Random(seed) if everything else None
        self.num_imported = self.num_released = self.num_forked = 0
        self.arrivals = 0.2 if speculates else 0.4  # a step
        self.most_tokens = 24 if speculates else 14
        self.sequences: dict[str, Sequence] = {}
        self.aborted: set[str] = set()
        self.prompts: list[list[int]] = []

    def run(self, num_sequences: int, max_steps: int) -> None:
        scheduler = self.simulation.scheduler
        for _ in range(max_steps):
            is_busy = self.forks is not None and len(scheduler.waiting) > MOST_WAITING
            has_more = len(self.sequences) < num_sequences and not is_busy
            if has_more and self.rng.random() < self.arrivals:
                self.add()
            if self.rng.random() < 0.03:
                self.abort()
            for sequence in list(scheduler.importing.values()):
                if self.rng.random() < 0.3:
                    lowest, highest = sequence.num_cached_tokens, len(sequence.token_ids)
                    if sequence.num_null_blocks:  # nothing, or what is not given up
                        lowest = max(lowest, self.rng.choice([0, highest]))
                    self.simulation.finish_import(sequence, self.rng.randint(lowest, highest))
                    self.num_imported += 1
            for sequence in list(scheduler.held.values()):
                if self.rng.random() < 0.3:
                    scheduler.finish(sequence)
                    self.num_released += 1
            ready = [s for s in scheduler.running if s.is_prefilling or s.is_decoding]
            scheduled = self.simulation.step()
            self.check_turns(ready, {entry.sequence.leader for entry in scheduled.batch})
            is_idle = not len(scheduler) and not self.simulation.in_flight
            if len(self.sequences) >= num_sequences and is_idle:
                return
        raise AssertionError(f"{len(scheduler)} sequences left after {max_steps} steps")

    def check_turns(self, ready: list[Sequence], batch: set[Sequence]) -> None:
        """Whoever could be in a step is in one soon, whatever other tenants have there."""
        most = 2 * (len(self.tenants) + 1) * (len(ready) + 1)
        for sequence in ready:
            of_lower_number = any(
                other.flow == sequence.flow and other.priority < sequence.priority
                for other in batch
            )
            if sequence in batch or of_lower_number or sequence.state is not SequenceState.RUNNING:
                self.idle_steps[sequence] = 0
            elif not sequence.flow.is_background:
                self.idle_steps[sequence] += 1
                assert self.idle_steps[sequence] <= most

    def add(self) -> None:
        """Mostly a prompt that starts like an earlier one."""
        rng, prompt = self.rng, []
        if self.prompts and rng.random() < 0.7:
            prompt = rng.choice(self.prompts)[: rng.randint(1, 20)]
        prompt = prompt + [rng.randrange(49) for _ in range(rng.randint(0 if prompt else 1, 10))]
        self.prompts.append(prompt)
        kind = rng.random()
        if self.searches and rng.random() < 0.4:
            self.add_search(prompt)
            return
        tenant = rng.choice(self.tenants)
        priority = rng.choice([0, 0, 0, -2, 1])
        if len(self.tenants) > 1:
            priority = rng.choice([priority, priority, 1001])
        kv_source, prefill_only = KvSource.COMPUTE, 0.2 < kind < 0.4
        sampling = SamplingParams(max_tokens=rng.randint(3, self.most_tokens))
        output = tuple(rng.randrange(49) for _ in range(rng.choice([0, 0, 2])))
        if kind < 0.25:
            kv_source = rng.choice([KvSource.IMPORT, KvSource.HANDOVER])
        first_export_block = rng.choice([0, rng.randrange(len(prompt) // 4 + 1)])
        num_choices, deadline = 1, math.inf
        if self.forks is not None:
            num_choices = self.forks.choice([1, 1, 3])
            deadline = self.forks.choice([math.inf, self.forks.random()])
            self.num_forked += num_choices - 1
        for _ in range(num_choices):
            sequence_id = str(len(self.sequences))
            self.sequences[sequence_id] = self.simulation.add(
                make_request(
                    sequence_id,
                    prompt,
                    block_size=4,
                    sampling=sampling,
                    output_token_ids=output,
                    kv_source=kv_source,
                    prefill_only=prefill_only,
                    first_export_block=first_export_block,
                    token_mask=rng.choice([None, None, ForcesRuns(rng.choice([1, 4, 13]))]),
                    priority=priority,
                    deadline=deadline,
                    tenant=tenant,
                    weight=1.0 + 2.0 * (tenant == self.tenants[-1] != self.tenants[0]),
                )
            )

    def add_search(self, prompt: list[int]) -> None:
        """One that the door lets in: the pool is large enough for each alone."""
        rng = self.rng
        sequence_id = str(len(self.sequences))
        for _ in range(1000):
            params = SamplingParams(
                max_tokens=rng.randint(1, 12),
                temperature=0.0,
                beam_search=BeamSearchParams(
                    rng.randint(1, 4),
                    rng.choice([0.0, 1.0, 2.0]),
                    rng.choice([False, True, "never"]),
                ),
            )
            request = make_request(
                sequence_id,
                prompt,
                block_size=4,
                sampling=params,
                kv_source=KvSource.IMPORT if rng.random() < 0.25 else KvSource.COMPUTE,
                tenant=rng.choice(self.tenants),
            )
            if self.simulation.accepts(request):
                self.sequences[sequence_id] = self.simulation.add(request)
                return
        raise AssertionError(f"no search of {len(prompt)} tokens fits the pool")

    def check(self) -> None:
        """All blocks are free, and every output is what it is alone, or its beginning."""
        simulation = self.simulation
        assert simulation.pool.num_free_blocks == simulation.config.num_blocks
        for sequence_id, sequence in self.sequences.items():
            if sequence.beams is not None:
                self.check_hypotheses(sequence_id, sequence)
                continue
            expected = expected_output(sequence.request, 44)
            found = simulation.tokens(sequence_id)
            num_expected = len(found) if sequence_id in self.aborted else len(expected)
            assert found == expected[:num_expected]

    def check_hypotheses(self, sequence_id: str, sequence: Sequence) -> None:
        outputs = self.simulation.outputs.get(sequence_id, [])
        assert len(outputs) == 1 or sequence_id in self.aborted
        for output in outputs:
            found = [hypothesis.token_ids for hypothesis in output.hypotheses]
            assert found == expected_hypotheses(sequence.request, 44)

    def abort(self) -> None:
        alive = [s for s in self.sequences.values() if s.state is not SequenceState.FINISHED]
        if alive:
            victim = self.rng.choice(alive)
            self.aborted.add(victim.sequence_id)
            self.simulation.scheduler.finish(victim)
