"""What the persistent buffers hold at every replay, and that a replay computes the same tokens."""

import random

import pytest
import torch
from support.engine_driver import EngineDriver
from support.rerun_capture import RerunCapture
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import EngineConfig, InvalidConfigError, LoadedModel, SamplingParams
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.step.decode_graphs import DecodeGraphs, chosen_sizes
from pagoda_engine.step.inputs import KNOWN
from pagoda_kernels import PAD_SLOT

BLOCK_SIZE = 4


class Capturing(EngineDriver):
    """An engine with stand-in graphs of some sizes."""

    def __init__(self, model: LoadedModel, sizes: tuple[int, ...], **fields: object) -> None:
        self.capture = RerunCapture()
        values = {"block_size": BLOCK_SIZE, "num_blocks": 40, "max_model_len": 100}
        config = EngineConfig(**{**values, "graph_batch_sizes": sizes, **fields})
        super().__init__(model, config, graph_capture=self.capture)
        self.progress: list[tuple[int, int]] = []
        self.engine.capture(lambda done, total: self.progress.append((done, total)))


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


def test_decodes_replay_and_prefills_do_not(tiny_model: LoadedModel) -> None:
    driver = Capturing(tiny_model, (1, 2))
    driver.add("a", PROMPT, sampling=greedy(4))
    driver.run()
    assert [result.stats.is_graph for result in driver.results] == [False, True, True, True]


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


@pytest.mark.parametrize("sizes", [(1,), (4,), (2, 5), (1, 2, 3, 4, 5, 6)], ids=str)
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


def test_buffers_at_every_replay(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Positions, contexts, slots and tables are the sequences'; padding reads one slot only."""
    expected: list[dict[int, tuple[int, list[int]]]] = []
    found: list[dict[int, tuple[int, list[int]]]] = []
    prepare, forward = DecodeGraphs.prepare, Decoder.forward
    graphs: list[DecodeGraphs] = []

    def watched_prepare(self: DecodeGraphs, batch: tuple[ScheduledSequence, ...]) -> object:
        rows, replay = prepare(self, batch)
        expected.append(
            {
                row: (entry.first_token, list(entry.sequence.block_ids))
                for row, entry in zip(rows, batch, strict=True)
            }
        )
        graphs[:] = [self]
        return rows, replay

    def watched_forward(self: Decoder, *args: object, **kwargs: object) -> torch.Tensor:
        if len(expected) > len(found):
            found.append(_read_buffers(graphs[0], expected[-1]))
        return forward(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(DecodeGraphs, "prepare", watched_prepare)
    monkeypatch.setattr(Decoder, "forward", watched_forward)
    rng = random.Random(seed)
    driver = Capturing(tiny_model, (2, 4, 8), num_blocks=16, max_num_seqs=7)
    prompts = [[rng.randrange(250) for _ in range(rng.randint(1, 9))] for _ in range(12)]
    driver.generate(prompts, sampling=greedy(11))
    assert driver.num_preempted > 0
    assert len(expected) > 20
    assert found == expected


def _read_buffers(
    graphs: DecodeGraphs, rows: dict[int, tuple[int, list[int]]]
) -> dict[int, tuple[int, list[int]]]:
    """Return (position, blocks) of each row from what the model will read, checking the rest."""
    size = next(size for size in (2, 4, 8) if size >= len(rows))
    found = {}
    for row, column in enumerate(graphs.inputs[:, :size].T.tolist()):
        _, previous_row, position, context_len, slot = column
        if row not in rows:
            assert (previous_row, position, context_len, slot) == (KNOWN, 0, 1, PAD_SLOT)
            continue
        assert context_len == position + 1
        blocks = graphs.block_tables[0, row, : position // BLOCK_SIZE + 1].tolist()
        assert slot == blocks[-1] * BLOCK_SIZE + position % BLOCK_SIZE
        found[row] = position, blocks
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
