"""Layers at the end without KV of their own: of a prompt they compute what is sampled alone."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_driver import Collected, EngineDriver
from support.family_checkpoints import make_family_checkpoint
from support.prompts_in_windows import prompt_of
from support.seeds import seed_of_tests

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams, load_model
from pagoda_engine.models import native_layers
from pagoda_engine.models.attention import Attention
from pagoda_engine.start_up.profile_memory import measure_budget
from pagoda_kernels.native import packed_linear

SAMPLING = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, num_logprobs=2)
LENGTHS = [70, 9, 33, 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family_checkpoint(tmp_path_factory.mktemp("model"), "gemma4_small")


@pytest.fixture
def by_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    monkeypatch.setattr(packed_linear, "native_library", lambda: None)
    monkeypatch.setattr(native_layers, "native_library", lambda: None)
    model = load_model(folder, EngineConfig(dtype="float32"))
    assert model.description.kv_layers[-1] == 5
    return model


@pytest.fixture
def rows_of_layers(by_torch: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """For each layer the rows that it computed in each step."""
    rows = {id(layer.attention): list[int]() for layer in by_torch.decoder.layers}
    write = Attention.write

    def counted(self: Attention, hidden: torch.Tensor, *others: Any) -> torch.Tensor:
        rows[id(self)].append(len(hidden))
        return write(self, hidden, *others)

    monkeypatch.setattr(Attention, "write", counted)
    return [*rows.values()]


def run(model: LoadedModel, sampling: SamplingParams = SAMPLING) -> dict[str, Collected]:
    rng = random.Random(seed_of_tests())
    config = EngineConfig(
        block_size=4, num_blocks=100, max_model_len=200, max_num_batched_tokens=24, max_num_seqs=4
    )
    driver = EngineDriver(model, config)
    for i, length in enumerate(LENGTHS):
        driver.add(str(i), prompt_of(rng, length), sampling=sampling)
    return driver.run()


def assert_alike(found: dict[str, Collected], expected: dict[str, Collected]) -> None:
    for name, sequence in expected.items():
        assert found[name].token_ids == sequence.token_ids
        for a, b in zip(found[name].logprobs, sequence.logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_they_compute_what_is_sampled_alone(
    by_torch: LoadedModel, rows_of_layers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(by_torch)
    first, last = rows_of_layers[0], rows_of_layers[-1]
    assert all(rows == first for rows in rows_of_layers[:6])
    assert all(rows == last for rows in rows_of_layers[6:])
    assert sum(first) == sum(LENGTHS) + 5 * len(LENGTHS)
    assert sum(last) == 6 * len(LENGTHS)
    assert len(last) < len(first)  # chunks that nothing is sampled of end with the last KV
    monkeypatch.setattr(type(by_torch.decoder), "takes_last_rows", False)
    assert_alike(found, run(by_torch))


def test_rows_of_the_prompt_that_are_asked_for_are_computed_to_the_end(
    by_torch: LoadedModel, rows_of_layers: list[list[int]]
) -> None:
    found = run(by_torch, replace(SAMPLING, num_prompt_logprobs=2))
    assert sum(rows_of_layers[-1]) == sum(rows_of_layers[0])
    for name, length in enumerate(LENGTHS):
        assert len(found[str(name)].prompt_logprobs) == length - 1
    assert_alike(found, run(by_torch))


class EmptyDevice:
    """Whose memory nobody counts."""

    name = "gpu"

    def total_and_free(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def reserved(self) -> int:
        return 0

    def peak(self) -> int:
        return 0

    def trim(self) -> None:
        pass


def test_the_largest_step_that_is_measured_has_all_rows_in_all_layers(
    by_torch: LoadedModel, rows_of_layers: list[list[int]]
) -> None:
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=80, max_model_len=200)
    measure_budget(by_torch, config, EmptyDevice(), utilization=0.9)
    assert {rows[0] for rows in rows_of_layers} == {80}
