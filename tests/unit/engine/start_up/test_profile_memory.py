"""The largest step is really run; its memory is what a decoder that counts says it took."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_engine.cache.copy_lanes import NUM_LANES
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.start_up import profile_memory
from pagoda_engine.start_up.profile_memory import (
    GRAPH_BYTES,
    MAX_OTHER_BYTES,
    budget_before_load,
    measure_budget,
)
from pagoda_engine.step.decode_graphs import chosen_sizes

GIB = 2**30
TOKEN_BYTES, ROW_BYTES, WEIGHTS = 1000, 7, 3 * GIB
CONFIG = EngineConfig(max_num_seqs=8, max_num_batched_tokens=100, max_model_len=512)


class CountingMemory:
    """A device on which torch holds the weights, and more while a forward runs.

    What libraries keep stays from the first forward on.
    """

    name = "gpu"

    def __init__(self, *, other: int = GIB // 2, neighbours: int = 0, kept: int = 0) -> None:
        self._taken = other + neighbours
        self._kept_later = kept
        self._reserved = self._peak = WEIGHTS

    def total_and_free(self) -> tuple[int, int]:
        return 80 * GIB, 80 * GIB - self._taken - self.reserved()

    def reserved(self) -> int:
        return self._reserved

    def peak(self) -> int:
        return self._peak

    def trim(self) -> None:
        self._peak = self._reserved

    def use(self, num_bytes: int) -> None:
        self._reserved += self._kept_later
        self._kept_later = 0
        self._peak = max(self._peak, self._reserved + num_bytes)


class CountingDecoder:
    """A real decoder that says what its steps would take."""

    def __init__(self, decoder: Decoder, use: Callable[[int], None]) -> None:
        self._decoder = decoder
        self._use = use
        self.shapes: list[tuple[int, int]] = []  # (tokens, rows with logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def hidden(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        hidden = self._decoder.hidden(*args, **kwargs)
        self.shapes.append((len(args[0]), len(hidden)))
        self._use(len(args[0]) * TOKEN_BYTES + len(hidden) * ROW_BYTES)
        return hidden


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    return load_model(folder, EngineConfig(dtype="float32"))


def counting(model: LoadedModel, memory: CountingMemory) -> tuple[LoadedModel, CountingDecoder]:
    decoder = CountingDecoder(model.decoder, memory.use)
    return replace(model, decoder=decoder), decoder  # type: ignore[arg-type]


def test_the_largest_step_is_measured(model: LoadedModel) -> None:
    memory = CountingMemory()
    counted, decoder = counting(model, memory)
    budget = measure_budget(counted, CONFIG, memory, utilization=0.5)

    assert decoder.shapes == [(96, 8), (8, 8), (8, 8)]  # 8 prompts of 12 tokens, then their decodes
    assert budget.activation_bytes == 96 * TOKEN_BYTES + 8 * ROW_BYTES
    assert budget.weight_bytes == WEIGHTS
    assert budget.other_bytes == GIB // 2
    assert budget.largest_step == "100 tokens of 8 sequences"
    assert budget.pool_bytes == (
        40 * GIB
        - WEIGHTS
        - GIB // 2
        - budget.activation_bytes
        - budget.graph_bytes
        - budget.copy_bytes
    )


def test_what_libraries_keep_is_counted_for_the_engines_stream_twice(model: LoadedModel) -> None:
    """Once for the thread that starts it and once for the one that steps."""
    kept = 32 * 2**20
    with_libraries, without = (
        measure_budget(counting(model, memory)[0], CONFIG, memory, utilization=0.5)
        for memory in (CountingMemory(kept=kept), CountingMemory())
    )

    assert with_libraries.weight_bytes == WEIGHTS + kept  # of the measurement's own stream
    assert with_libraries.activation_bytes == without.activation_bytes + 2 * kept
    assert with_libraries.graph_bytes == without.graph_bytes


def test_graphs_take_the_memory_of_the_largest_decode_and_their_own(model: LoadedModel) -> None:
    memory = CountingMemory()
    counted, _ = counting(model, memory)
    chosen = measure_budget(counted, CONFIG, memory, utilization=0.5)
    sizes = measure_budget(
        counted, replace(CONFIG, graph_batch_sizes=(1, 8)), memory, utilization=0.5
    )
    eager = measure_budget(counted, replace(CONFIG, enforce_eager=True), memory, utilization=0.5)

    decode = 8 * TOKEN_BYTES + 8 * ROW_BYTES
    assert chosen.graph_bytes == decode + len(chosen_sizes(8)) * GRAPH_BYTES
    assert sizes.graph_bytes == decode + 2 * GRAPH_BYTES
    assert eager.graph_bytes == 0


@pytest.mark.parametrize(
    ("limits", "shapes"),
    [
        ({"max_num_seqs": 1, "max_model_len": 64}, [(61, 1), (1, 1), (1, 1)]),
        ({"max_num_batched_tokens": 4}, [(4, 4), (4, 4), (4, 4)]),  # as many as a step has tokens
        ({"max_num_batched_tokens": 1, "max_num_seqs": 1}, [(1, 1), (1, 1), (1, 1)]),
        ({"block_size": 1}, [(96, 8), (8, 8), (8, 8)]),
        (
            {"block_size": 1, "max_num_seqs": 2, "max_num_batched_tokens": 1018},
            [(1018, 2), (2, 2), (2, 2)],  # so many blocks that admission spares many
        ),
        ({"block_size": 64}, [(96, 8), (8, 8), (8, 8)]),
    ],
)
def test_any_limits_can_be_measured(
    model: LoadedModel, limits: dict[str, int], shapes: list[tuple[int, int]]
) -> None:
    memory = CountingMemory()
    counted, decoder = counting(model, memory)
    measure_budget(counted, replace(CONFIG, **limits), memory, utilization=0.5)

    assert decoder.shapes == shapes


@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
def test_copies_take_a_chunk_or_a_block_in_each_lane(
    model: LoadedModel, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_memory, "DEVICE_CHUNK_BYTES", chunk_bytes)
    budget = measure_budget(model, CONFIG, CountingMemory(), utilization=0.5)

    block_bytes = model.kv_layout(CONFIG.block_size).block_bytes
    assert 1 < block_bytes < 2**20
    assert budget.copy_bytes == NUM_LANES * max(chunk_bytes, block_bytes)


@pytest.mark.parametrize("buffer_bytes", [1, 2**20])
def test_a_buffer_of_the_reader_is_taken_for_each_lane(
    model: LoadedModel, buffer_bytes: int
) -> None:
    block_bytes = model.kv_layout(CONFIG.block_size).block_bytes
    without = measure_budget(model, CONFIG, CountingMemory(), utilization=0.5).copy_bytes
    with_buffers = measure_budget(
        model,
        CONFIG,
        CountingMemory(),
        utilization=0.5,
        read_buffer_bytes=lambda num_bytes: max(buffer_bytes, num_bytes),
    ).copy_bytes

    assert with_buffers - without == NUM_LANES * max(buffer_bytes, block_bytes)


def test_neighbours_count_as_this_process_up_to_a_bound(model: LoadedModel) -> None:
    memory = CountingMemory(neighbours=30 * GIB)
    budget = measure_budget(model, CONFIG, memory, utilization=0.5)

    assert budget.other_bytes == MAX_OTHER_BYTES
    assert budget.neighbour_bytes == 30 * GIB - GIB // 2


def test_before_the_weights_are_there_they_count_as_taken() -> None:
    budget = budget_before_load(CountingMemory(), utilization=0.5, weight_bytes=100 * GIB)

    assert budget.free_bytes == 80 * GIB - WEIGHTS - GIB // 2 - 100 * GIB
    assert budget.pool_bytes == 0
