"""What the persistent buffers hold at every replay, and that a replay computes the same tokens."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.automaton_mask import AutomatonMask, random_edges
from support.engine_driver import EngineDriver
from support.family_checkpoints import make_family_checkpoint
from support.rerun_capture import RerunCapture
from support.seeds import runs
from support.thread_queue import ThreadQueue
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import (
    ComputedLayers,
    EngineConfig,
    InvalidConfigError,
    LoadedModel,
    SamplingParams,
    StepCost,
    load_model,
)
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.step import decode_graphs
from pagoda_engine.step.decode_graphs import DecodeGraphs, chosen_sizes
from pagoda_engine.step.inputs import KNOWN
from pagoda_engine.step.layer_export import OnLayers
from pagoda_kernels import PAD_SLOT

BLOCK_SIZE = 4
FEW = dict.fromkeys(range(30, 34), 40.0)
"""Bias to so few tokens that they repeat what has been."""
REFRAIN = [219] * 15
"""What the tiny model has an answer to that repeats itself."""
WHERE_PROPOSALS_PAY = StepCost(8.0, 1.0, 0.35, 0.05, is_seconds=True)


class Capturing(EngineDriver):
    """An engine with stand-in graphs of some sizes."""

    def __init__(
        self,
        model: LoadedModel,
        sizes: tuple[int, ...],
        queue: ThreadQueue | None = None,
        on_layers: OnLayers | None = None,
        **fields: object,
    ) -> None:
        self.capture = RerunCapture()
        values = {"block_size": BLOCK_SIZE, "num_blocks": 40, "max_model_len": 100}
        config = EngineConfig(**{**values, "graph_batch_sizes": sizes, **fields})
        super().__init__(
            model, config, queue=queue, graph_capture=self.capture, on_layers=on_layers
        )
        self.progress: list[tuple[int, int]] = []
        self.engine.capture(lambda done, total: self.progress.append((done, total)))


def num_verifying(driver: EngineDriver) -> int:
    """Return how many steps replayed a graph and verified proposed tokens."""
    stats = [result.stats for result in driver.results]
    return sum(s.is_graph and s.num_proposed_tokens > 0 for s in stats)


def test_capture_reports_its_progress(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 2, 4))
    assert driver.progress == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_capture_changes_no_kv(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 4))
    assert not driver.engine.kv_cache.tensor.any()


def test_graphs_share_one_output(tiny_model: LoadedModel) -> None:
    outputs = Capturing(tiny_model, (1, 2, 4)).capture.outputs
    assert [len(output) for output in outputs] == [4, 2, 1]
    assert len({output.data_ptr() for output in outputs}) == 1


def test_a_prompt_longer_than_the_largest_graph_does_not_replay(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 2))
    driver.add("a", PROMPT, sampling=greedy(4))
    driver.run()
    assert [result.stats.is_graph for result in driver.results] == [False, True, True, True]


def test_prompts_replay_beside_decodes_in_chunks_or_whole(tiny_model: LoadedModel) -> None:
    """A chunk that does not end its prompt gives no logits."""
    driver = Capturing(tiny_model, (1, 8), max_num_batched_tokens=8)
    prompts = [PROMPT[:5], PROMPT + OTHER, OTHER]
    tokens = driver.generate(prompts, sampling=greedy(9))
    stats = [result.stats for result in driver.results]
    assert all(s.is_graph for s in stats)
    assert any(s.num_prefill_tokens and s.num_decode_tokens for s in stats)
    assert any(s.num_prefill_tokens == 8 for s in stats)
    assert tokens == make_driver(tiny_model).generate(prompts, sampling=greedy(9))


def test_prompts_that_read_much_do_not_replay(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens behind six attend to fifteen; the rest of a cached prompt is such a one."""
    for limit, replays in ((15, True), (14, False)):
        monkeypatch.setattr(decode_graphs, "MAX_PROMPT_ATTENTION", limit)
        driver = Capturing(tiny_model, (1, 2), max_num_batched_tokens=2)
        driver.add("a", PROMPT[:8], sampling=greedy(2))
        driver.run()
        stats = [result.stats for result in driver.results]
        assert [s.is_graph for s in stats] == [True, True, True, replays, True]


def test_a_scored_prompt_does_not_replay(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 64))
    driver.add("a", PROMPT, sampling=greedy(2, num_prompt_logprobs=1))
    driver.run()
    assert [result.stats.is_graph for result in driver.results] == [False, True]


def test_what_a_replay_computes_for_another_worker_is_told_whole(tiny_model: LoadedModel) -> None:
    """Not by layers: a graph calls nobody in between. Later chunks leave the earlier ones out."""
    told: list[ComputedLayers] = []
    driver = Capturing(
        tiny_model, (8,), on_layers=told.extend, num_layer_groups=2, max_num_batched_tokens=8
    )
    driver.add("a", PROMPT + OTHER, sampling=greedy(1), prefill_only=True)
    driver.run()
    computed = [c for result in driver.results for c in result.computed]
    assert all(result.stats.is_graph for result in driver.results)
    assert told == []
    ends = [c.first_block + len(c.block_ids) for c in computed]
    assert [c.first_block for c in computed] == [0, *ends[:-1]]
    assert ends[-1] == -(-len(PROMPT + OTHER) // BLOCK_SIZE)


def test_an_embedding_does_not_replay(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 2))
    driver.add("a", PROMPT[:1], sampling=greedy(1))
    driver.run()
    driver.add("b", PROMPT[:1], sampling=greedy(0, embed=True))
    assert driver.run()["b"].embedding
    assert [result.stats.is_graph for result in driver.results] == [True, False]


def test_batch_beyond_the_largest_size_does_not_replay(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 2))
    tokens = driver.generate([PROMPT, OTHER, PROMPT[1:10]], sampling=greedy(4))
    assert driver.capture.num_replays == 0
    assert tokens[0] == make_driver(tiny_model).generate([PROMPT], sampling=greedy(4))[0]


@pytest.mark.parametrize("sizes", [(1,), (4,), (2, 5), (1, 2, 3, 4, 5, 6), (3, 64)], ids=str)
def test_replays_give_the_tokens_of_eager_steps(
    tiny_model: LoadedModel, sizes: tuple[int, ...], seed: int
) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 12))] for _ in range(8)]
    params = [
        SamplingParams(
            max_tokens=rng.randint(2, 14),
            temperature=rng.choice([0.0, 1.0]),
            presence_penalty=rng.choice([0.0, 0.9]),
            num_logprobs=rng.choice([None, 1]),
            seed=i,
            ignore_eos=True,
        )
        for i in range(8)
    ]
    eager = make_driver(tiny_model, num_blocks=14, max_num_seqs=6)
    graphs = Capturing(tiny_model, sizes, num_blocks=14, max_num_seqs=6)
    for driver in (eager, graphs):
        for i, prompt in enumerate(prompts):
            driver.add(str(i), prompt, sampling=params[i])
        driver.run()
        driver.add("alone", PROMPT, sampling=greedy(6))  # a batch of one, whatever was drawn
        driver.run()
    assert graphs.capture.num_replays > 0
    for i in range(8):
        assert graphs.sequences[str(i)].token_ids == eager.sequences[str(i)].token_ids


@pytest.fixture
def queues(seed: int) -> Iterator[list[ThreadQueue]]:
    queues = [ThreadQueue(seed), ThreadQueue(seed + 1)]
    yield queues
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("lag", [0, 1], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("sizes", [(*range(1, 17),), (9,), (3, 16), (2, 90)], ids=str)
@pytest.mark.parametrize("number", runs(1))
def test_replays_that_verify_are_as_eager_steps(
    tiny_model: LoadedModel,
    queues: list[ThreadQueue],
    seed: int,
    number: int,
    sizes: tuple[int, ...],
    lag: int,
) -> None:
    """Tokens and log probabilities to the bit, and what each step proposed and accepted."""
    fields = {"num_blocks": 28, "max_num_seqs": 16, "speculation": "ngram"}
    graphs = Capturing(tiny_model, sizes, queue=queues[0] if lag else None, **fields)
    eager = EngineDriver(tiny_model, graphs.config, queue=queues[1] if lag else None)
    for driver in (eager, graphs):
        driver.engine.set_step_cost(WHERE_PROPOSALS_PAY)
        rng = random.Random(seed + number)
        for name in map(str, range(24)):
            sampling = SamplingParams(
                max_tokens=rng.randint(10, 40),
                temperature=rng.choice([0.0, 0.7]),
                seed=rng.getrandbits(64),
                logit_bias=FEW,
                presence_penalty=rng.choice([0.0, 0.0, 0.0, 0.5]),
                num_logprobs=rng.choice([None, 2]),
                min_tokens=rng.choice([0, 9]),
                stop_token_ids=(rng.choice([31, 250]),),
            )
            mask = rng.choice([None, None, AutomatonMask(random_edges(rng, num_states=6))])
            prompt = [rng.randrange(250) for _ in range(rng.randint(1, 12))] * rng.randint(1, 2)
            driver.add(name, prompt, sampling=sampling, token_mask=mask)
        driver.run()
        driver.add("alone", REFRAIN, sampling=greedy(60))  # proposed for, whatever was drawn
        driver.run()
    assert graphs.num_preempted > 0
    for name in graphs.sequences:
        assert found_of(graphs, name) == found_of(eager, name)
    assert verified_by(graphs) == verified_by(eager)
    assert num_verifying(graphs) > 1


def test_a_decode_behind_one_that_verifies_goes_on_from_its_own_row(
    tiny_model: LoadedModel, queues: list[ThreadQueue]
) -> None:
    """Its token is still on the device when the next step is launched."""
    samplings = greedy(60), greedy(60, repetition_penalty=1.01)
    driver = Capturing(tiny_model, (1, 2, 16), queue=queues[0], speculation="ngram")
    driver.engine.set_step_cost(WHERE_PROPOSALS_PAY)
    for name, sampling in zip("ab", samplings, strict=True):
        driver.add(name, REFRAIN, sampling=sampling)
    driver.run()
    for name, sampling in zip("ab", samplings, strict=True):
        expected = make_driver(tiny_model).generate([REFRAIN], sampling=sampling)[0]
        assert driver.sequences[name].token_ids == expected
    assert any(num == 2 and num_proposed for num, num_proposed, _ in verified_by(driver))


def found_of(driver: EngineDriver, name: str) -> tuple[object, ...]:
    found = driver.sequences[name]
    return found.token_ids, found.logprobs, found.finish_reason, found.matched_stop_token_id


def verified_by(driver: EngineDriver) -> list[tuple[int, ...]]:
    """Return of each step its sequences, proposed tokens, and those of them that were right."""
    stats = [result.stats for result in driver.results]
    return [(s.num_sequences, s.num_proposed_tokens, s.num_accepted_tokens) for s in stats]


@pytest.mark.parametrize("family", ["bloom", "deepseek_v2", "gpt_oss", "mistral"])
def test_rows_of_a_sequence_attend_as_its_decodes_would(tmp_path: Path, family: str) -> None:
    """With ALiBi, latents, sinks and windows too; those of a prompt as well."""
    folder = make_family_checkpoint(tmp_path, family)
    model = load_model(folder, EngineConfig(dtype="float32", max_model_len=100))
    graphs = Capturing(model, (2, 8, 64), speculation="ngram")
    sampling = greedy(50, logit_bias=FEW)
    expected = make_driver(model).generate([PROMPT, OTHER], sampling=sampling)
    assert graphs.generate([PROMPT, OTHER], sampling=sampling) == expected
    assert num_verifying(graphs) > 2
    assert all(result.stats.is_graph for result in graphs.results)


def test_a_step_with_more_rows_than_the_largest_graph_runs_eagerly(tiny_model: LoadedModel) -> None:
    """Whatever a step is of: a graph of four rows verifies three proposed tokens at most."""
    driver = Capturing(tiny_model, (1, 4), speculation="ngram")
    driver.generate([PROMPT], sampling=greedy(60, logit_bias=FEW))
    rows = [
        (s.num_decode_tokens + s.num_proposed_tokens, s.is_graph)
        for result in driver.results
        if (s := result.stats).num_decode_tokens
    ]
    assert all(is_graph == (num_rows <= 4) for num_rows, is_graph in rows)
    assert {is_graph for num_rows, is_graph in rows if num_rows > 1} == {True, False}


Row = tuple[int | None, int, list[int]]
"""Token, unless the device alone knows it; position; blocks up to there."""


@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_buffers_at_every_replay(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch, seed: int, speculation: str
) -> None:
    """Tokens, contexts, slots and tables are the sequences'; padding reads one slot only."""
    expected: list[dict[int, Row]] = []
    found: list[dict[int, Row]] = []
    prepare, forward = DecodeGraphs.prepare, Decoder.forward
    graphs: list[DecodeGraphs] = []

    def watched_prepare(self: DecodeGraphs, batch: tuple[ScheduledSequence, ...]) -> object:
        rows, replay = prepare(self, batch)
        tokens = [row for entry in batch for row in _rows_of(entry)]
        assert sorted(rows) == list(range(len(tokens)))
        expected.append(dict(zip(rows, tokens, strict=True)))
        graphs[:] = [self]
        return rows, replay

    def watched_forward(self: Decoder, *args: object, **kwargs: object) -> torch.Tensor:
        if len(expected) > len(found):
            found.append(_read_buffers(graphs[0], expected[-1]))
        return forward(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(DecodeGraphs, "prepare", watched_prepare)
    monkeypatch.setattr(Decoder, "forward", watched_forward)
    rng = random.Random(seed)
    fields = {"num_blocks": 24, "max_num_seqs": 7, "speculation": speculation}
    driver = Capturing(tiny_model, (2, 4, 8), **fields)
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 9))] for _ in range(12)]
    driver.generate(prompts, sampling=greedy(24, logit_bias=FEW))
    assert driver.num_preempted > 0
    assert len(expected) > 20
    assert found == expected
    assert (num_verifying(driver) > 5) == (speculation != "off")


def _rows_of(entry: ScheduledSequence) -> list[Row]:
    """Return what the rows of an entry should be, in order."""
    known = [*entry.sequence.token_ids, *entry.proposed]
    return [
        (
            known[position] if position < len(known) else None,
            position,
            entry.sequence.block_ids[: position // BLOCK_SIZE + 1],
        )
        for position in range(entry.first_token, entry.num_context_tokens)
    ]


def _read_buffers(graphs: DecodeGraphs, rows: dict[int, Row]) -> dict[int, Row]:
    """Return each row from what the model will read, checking the rest."""
    size = next(size for size in (2, 4, 8) if size >= len(rows))
    found: dict[int, Row] = {}
    for row, column in enumerate(graphs.inputs[:, :size].T.tolist()):
        token_id, previous_row, position, context_len, slot = column
        if row not in rows:
            assert (previous_row, position, context_len, slot) == (KNOWN, 0, 1, PAD_SLOT)
            continue
        assert context_len == position + 1
        blocks = graphs.block_tables[0, row, : position // BLOCK_SIZE + 1].tolist()
        assert slot == blocks[-1] * BLOCK_SIZE + position % BLOCK_SIZE
        found[row] = token_id if previous_row == KNOWN else None, position, blocks
    return found


def test_chosen_sizes_end_with_the_largest_batch() -> None:
    assert chosen_sizes(1) == (1,)
    assert chosen_sizes(3) == (1, 2, 3)
    assert chosen_sizes(24) == (1, 2, 4, 8, 16, 24)
    assert chosen_sizes(256)[-3:] == (224, 240, 256)
    assert chosen_sizes(4096)[-1] == 512
    assert all(sorted(set(sizes)) == list(sizes) for sizes in map(chosen_sizes, range(1, 600)))


@pytest.mark.parametrize("sizes", [(), (0, 1), (2, 1), (1, 1)], ids=str)
def test_sizes_out_of_order_are_refused(tiny_model: LoadedModel, sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfigError, match="graph_batch_sizes"):
        make_driver(tiny_model, graph_batch_sizes=sizes)
