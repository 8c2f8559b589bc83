"""The step loop over a device that works on its own gives the tokens of the synchronous loop."""

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from support.automaton_mask import AutomatonMask, OneByOne, random_edges
from support.engine_driver import Collected, EngineDriver
from support.rerun_capture import RerunCapture
from support.thread_queue import ThreadQueue
from support.tiny_checkpoints import VOCAB_SIZE
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import (
    EngineConfig,
    FinishReason,
    KvSource,
    LoadedModel,
    SamplingParams,
    StepCost,
    StepResult,
)

CHEAP = StepCost(8.0, 1.0, 0.35, 0.05, is_seconds=True)
"""Steps that take so long that whatever is drafted pays, if it may be right."""
CONFIG = {"block_size": 4, "num_blocks": 32, "max_model_len": 100}


@pytest.fixture
def queue(seed: int) -> Iterator[ThreadQueue]:
    queue = ThreadQueue(seed)
    yield queue
    queue.close()


def make_overlapped(model: LoadedModel, queue: ThreadQueue, **fields: object) -> EngineDriver:
    return EngineDriver(model, EngineConfig(**{**CONFIG, **fields}), queue=queue)


def alone(model: LoadedModel, prompt: Sequence[int], **fields: object) -> list[int]:
    return collected_alone(model, prompt, **fields).token_ids


def collected_alone(model: LoadedModel, prompt: Sequence[int], **fields: object) -> Collected:
    """Return what the synchronous loop gives to a sequence that has the engine to itself."""
    driver = make_driver(model)
    driver.add("a", prompt, **fields)
    return driver.run()["a"]


def test_next_step_is_launched_before_the_tokens_are_read(
    tiny_model: LoadedModel, queue: ThreadQueue
) -> None:
    driver = make_overlapped(tiny_model, queue)
    driver.add("a", PROMPT, sampling=greedy(3))
    numbers_of_tokens = [sum(len(o.token_ids) for o in driver.step().outputs) for _ in range(4)]
    assert numbers_of_tokens == [0, 1, 1, 1]
    assert not driver.engine.has_work()
    assert driver.sequences["a"].token_ids == alone(tiny_model, PROMPT, sampling=greedy(3))


def test_end_by_length_is_foreseen(tiny_model: LoadedModel, queue: ThreadQueue) -> None:
    driver = make_overlapped(tiny_model, queue)
    driver.add("a", PROMPT, sampling=greedy(3))
    driver.run()
    assert sum(result.stats.num_decode_tokens for result in driver.results) == 2


def test_stop_token_costs_one_row_that_nobody_sees(
    tiny_model: LoadedModel, queue: ThreadQueue
) -> None:
    tokens = alone(tiny_model, PROMPT, sampling=greedy(6))
    driver = make_overlapped(tiny_model, queue)
    driver.add("a", PROMPT, sampling=greedy(6, stop_token_ids=(tokens[2],)))
    output = driver.run()["a"]
    assert output.token_ids == tokens[:3]
    assert output.finish_reason is FinishReason.STOP
    assert sum(result.stats.num_decode_tokens for result in driver.results) == 3
    assert driver.engine.num_free_blocks == 32


def test_abort_while_a_step_is_under_way(tiny_model: LoadedModel, queue: ThreadQueue) -> None:
    driver = make_overlapped(tiny_model, queue)
    driver.add("a", PROMPT, sampling=greedy(50))
    for _ in range(3):
        driver.step()
    driver.engine.abort("a")
    assert driver.engine.num_free_blocks == 32
    driver.add("b", OTHER, sampling=greedy(5))  # gets the blocks that the step still writes to
    outputs = driver.run()
    assert outputs["a"].finish_reason is FinishReason.ABORT
    assert outputs["b"].token_ids == alone(tiny_model, OTHER, sampling=greedy(5))


def test_import_into_blocks_that_a_step_under_way_still_writes_to(tiny_model: LoadedModel) -> None:
    source = make_driver(tiny_model)
    source.add("x", OTHER, sampling=greedy(2), prefill_only=True)
    kv = source.engine.kv_cache.read_blocks(source.step().reserved[0].block_ids)
    late = ThreadQueue(0, late_share=1.0)
    driver = make_overlapped(tiny_model, late, num_blocks=7)
    driver.add("a", PROMPT, sampling=greedy(7))
    for _ in range(3):
        driver.step()
    driver.engine.abort("a")  # whose fourth step is under way
    driver.add("x", OTHER, sampling=greedy(5), kv_source=KvSource.IMPORT)
    (reservation,) = driver.step().reserved
    driver.engine.kv_cache.write_blocks(reservation.block_ids, kv)
    driver.engine.import_finished("x", num_computed_tokens=len(OTHER))
    assert driver.run()["x"].token_ids == alone(tiny_model, OTHER, sampling=greedy(5))
    late.close()


def test_mask_sees_every_token(tiny_model: LoadedModel, queue: ThreadQueue) -> None:
    thirds = {i: dict.fromkeys(range(i, VOCAB_SIZE, 3), (i + 1) % 3) for i in range(3)}
    fields = {"sampling": greedy(8), "token_mask": AutomatonMask(thirds)}
    driver = make_overlapped(tiny_model, queue)
    driver.add("masked", PROMPT, **fields)
    driver.add("free", OTHER, sampling=greedy(8))
    outputs = driver.run()
    assert [token % 3 for token in outputs["masked"].token_ids] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert outputs["masked"].token_ids == alone(tiny_model, PROMPT, **fields)
    assert outputs["free"].token_ids == alone(tiny_model, OTHER, sampling=greedy(8))


def test_stats_say_what_the_device_did(tiny_model: LoadedModel, queue: ThreadQueue) -> None:
    driver = make_overlapped(tiny_model, queue)
    driver.add("a", PROMPT, sampling=greedy(4))
    driver.run()
    stats = [result.stats for result in driver.results if result.stats.num_sequences]
    assert [s.num_prefill_tokens for s in stats] == [len(PROMPT), 0, 0, 0]
    assert all(s.forward_seconds > 0 and s.sample_seconds > 0 for s in stats)
    assert stats[0].gap_seconds == 0
    assert all(s.gap_seconds > 0 for s in stats[1:])


class RandomCaller:
    """Adds, aborts and imports at random, over prompts that share prefixes."""

    def __init__(
        self,
        model: LoadedModel,
        seed: int,
        queue: ThreadQueue | None,
        *,
        draft: LoadedModel | None = None,
    ) -> None:
        self.model = model
        self.rng = rng = random.Random(seed)
        self.capture = RerunCapture() if rng.random() < 0.7 else None
        config = EngineConfig(
            block_size=4,
            num_blocks=rng.choice([14, 20, 40]),
            max_model_len=52,
            max_num_seqs=rng.choice([3, 6]),
            max_num_batched_tokens=rng.choice([7, 64]),
            enable_prefix_caching=rng.random() < 0.7,
            graph_batch_sizes=rng.choice([None, (1, 3), (2, 4, 6)]),
            speculation="off" if draft is None else "ngram",
        )
        self.driver = EngineDriver(
            model, config, queue=queue, graph_capture=self.capture, draft=draft
        )
        if draft is not None:
            self.driver.engine.set_step_cost(CHEAP)
        self.driver.engine.capture()
        self.fields: dict[str, dict[str, object]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.aborted: set[str] = set()
        self.importing: dict[str, int] = {}  # sequence -> tokens that were cached

    def run(self, num_sequences: int) -> None:
        engine = self.driver.engine
        for _ in range(10_000):
            if len(self.prompts) < num_sequences and self.rng.random() < 0.5:
                self.add()
            if self.prompts and self.rng.random() < 0.02:
                victim = self.rng.choice(list(self.prompts))
                self.aborted.add(victim)
                engine.abort(victim)
            for sequence_id in [s for s in self.importing if self.rng.random() < 0.5]:
                num_cached_tokens = self.importing.pop(sequence_id)
                engine.import_finished(sequence_id, num_computed_tokens=num_cached_tokens)
            if engine.has_work():
                self.note(self.driver.step())
            elif len(self.prompts) == num_sequences and not self.importing:
                return
        raise AssertionError("still busy")

    def note(self, result: StepResult) -> None:
        for reservation in result.reserved:
            if self.fields[reservation.sequence_id].get("kv_source") is KvSource.IMPORT:
                blocks = reservation.block_ids[reservation.num_cached_tokens // 4 :]
                # Whoever imports may spoil these blocks: none of them is anybody else's.
                kv = self.driver.engine.kv_cache.read_blocks(blocks)
                self.driver.engine.kv_cache.write_blocks(blocks, torch.full_like(kv, 7))
                self.importing[reservation.sequence_id] = reservation.num_cached_tokens

    def add(self) -> None:
        rng, prompt = self.rng, []
        if self.prompts and rng.random() < 0.6:
            prompt = rng.choice(list(self.prompts.values()))[: rng.randint(1, 16)]
        prompt = prompt + [rng.randrange(250) for _ in range(rng.randint(0 if prompt else 1, 12))]
        params = SamplingParams(
            max_tokens=rng.randint(1, 16),
            temperature=rng.choice([0.0, 0.0, 1.0]),
            top_p=rng.choice([1.0, 0.8]),
            seed=rng.getrandbits(64),
            frequency_penalty=rng.choice([0.0, 0.0, 0.8]),
            num_logprobs=rng.choice([None, None, 2]),
            min_tokens=rng.choice([0, 3]),
            stop_token_ids=tuple(rng.sample(range(250), 12)),
        )
        fields: dict[str, object] = {"sampling": params}
        if rng.random() < 0.4:
            max_run = rng.choice([1, 3, 50])
            fields["token_mask"] = AutomatonMask(random_edges(rng), max_run=max_run)
        if rng.random() < 0.2:
            fields["kv_source"] = KvSource.IMPORT
        sequence_id = str(len(self.prompts))
        self.prompts[sequence_id], self.fields[sequence_id] = prompt, fields
        self.driver.add(sequence_id, prompt, **fields)

    def check(self) -> None:
        self.driver.check_compute_time()
        assert self.driver.engine.num_free_blocks == self.driver.config.num_blocks
        for sequence_id, prompt in self.prompts.items():
            found = self.driver.sequences[sequence_id]
            fields = {**self.fields[sequence_id], "kv_source": KvSource.COMPUTE}
            if (mask := fields.get("token_mask")) is not None:
                assert isinstance(mask, AutomatonMask)
                fields["token_mask"] = OneByOne(mask.edges)
            expected = collected_alone(self.model, prompt, **fields)
            if sequence_id in self.aborted:
                assert found.token_ids == expected.token_ids[: len(found.token_ids)]
            else:
                assert found.token_ids == expected.token_ids
                assert found.finish_reason is expected.finish_reason
                assert found.matched_stop_token_id == expected.matched_stop_token_id
            assert [lp.token_id for lp in found.logprobs] in ([], found.token_ids)


@pytest.mark.parametrize("number", range(6))
def test_random_schedules_give_the_tokens_of_the_synchronous_loop(
    tiny_model: LoadedModel, queue: ThreadQueue, seed: int, number: int
) -> None:
    caller = RandomCaller(tiny_model, seed + number, queue)
    caller.run(num_sequences=25)
    caller.check()


@pytest.mark.parametrize("number", range(6))
def test_random_schedules_with_a_draft_give_the_tokens_of_the_synchronous_loop(
    tiny_model: LoadedModel, queue: ThreadQueue, seed: int, number: int
) -> None:
    """A sequence sits out steps to be drafted, whatever else becomes of it meanwhile."""
    caller = RandomCaller(tiny_model, seed + number, queue, draft=tiny_model)
    caller.run(num_sequences=25)
    caller.check()
    drafter = caller.driver.engine.drafter
    assert drafter is not None
    assert drafter.num_forwards > 0
    assert sum(result.stats.num_accepted_tokens for result in caller.driver.results) > 0
    assert drafter.num_free_blocks == caller.driver.config.num_blocks


def test_random_schedules_preempt_and_replay(tiny_model: LoadedModel, queue: ThreadQueue) -> None:
    rng = random.Random(2)
    capture = RerunCapture()
    config = EngineConfig(block_size=4, num_blocks=12, max_model_len=44, max_num_seqs=6)
    driver = EngineDriver(tiny_model, config, queue=queue, graph_capture=capture)
    driver.engine.capture()
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 8))] for _ in range(10)]
    tokens = driver.generate(prompts, sampling=greedy(16))
    assert tokens == [alone(tiny_model, prompt, sampling=greedy(16)) for prompt in prompts]
    assert driver.num_preempted > 3
    assert capture.num_replays > 20
