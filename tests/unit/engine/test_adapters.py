"""Adapters in an engine: slots, whom rows belong to, which blocks may be shared."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.adapters import MODULES, make_tiny_adapter
from support.engine_driver import EngineDriver, make_request
from support.tiny_checkpoints import make_tiny_checkpoint
from support.tiny_engine import OTHER, PROMPT, greedy, make_driver

from pagoda_engine import (
    Adapter,
    AdapterNotLoadedError,
    AdapterSlots,
    AdapterTable,
    EngineConfig,
    FinishReason,
    LoadedModel,
    NoAdapterSlotError,
    SamplingParams,
    load_model,
    read_adapter,
)
from pagoda_engine.adapters.adapter import LoraWeights


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def model(model_folder: Path) -> LoadedModel:
    return load_model(model_folder, EngineConfig(dtype="float32", max_model_len=100))


@pytest.fixture(scope="module")
def adapters(
    model: LoadedModel, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        read_adapter(
            make_tiny_adapter(folder / str(seed), model_folder, seed=seed),
            model.description,
            max_rank=4,
        )
        for seed in range(3)
    ]


def driver_with(model: LoadedModel, *adapters: Adapter, num_slots: int = 3) -> EngineDriver:
    table = AdapterTable(AdapterSlots(model.decoder, num_slots=num_slots, max_rank=4))
    config = EngineConfig(block_size=4, num_blocks=64, max_model_len=100)
    driver = EngineDriver(model, config, adapters=table)
    for adapter in adapters:
        driver.engine.load_adapter(adapter)
    return driver


def add(
    driver: EngineDriver, name: str, adapter: Adapter | None, prompt: list[int] = PROMPT,
    sampling: SamplingParams | None = None,
) -> None:  # fmt: skip
    digest = b"" if adapter is None else adapter.digest
    driver.add(
        name,
        prompt,
        sampling=sampling or greedy(12, num_logprobs=4),
        adapter=digest,
        cache_root=digest or bytes(16),
    )


def logprobs(driver: EngineDriver, name: str) -> list[object]:
    return driver.run()[name].logprobs


def test_a_row_is_the_same_to_the_bit_whatever_its_batch(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    assert model.decoder.is_native or not model.decoder.is_batch_invariant
    if not model.decoder.is_batch_invariant:
        pytest.skip("this processor has no native operators: no row is")
    alone = []
    for adapter in (*adapters, None):
        driver = driver_with(model, *adapters)
        add(driver, "x", adapter)
        alone.append(logprobs(driver, "x"))
    driver = driver_with(model, *adapters)
    for i, adapter in enumerate((*adapters, None)):
        add(driver, f"{i}", adapter)
        add(driver, f"other-{i}", adapter, OTHER)
    together = driver.run()
    assert [together[str(i)].logprobs for i in range(4)] == alone
    assert len({tuple(together[str(i)].token_ids) for i in range(4)}) == 4


def test_rows_without_an_adapter_are_those_of_an_engine_without_adapters(
    model_folder: Path, adapters: list[Adapter]
) -> None:
    config = EngineConfig(dtype="float32", max_model_len=100)
    plain = make_driver(load_model(model_folder, config), num_blocks=64)
    add(plain, "x", None)
    expected = logprobs(plain, "x")
    driver = driver_with(load_model(model_folder, config), *adapters)
    add(driver, "x", None)
    assert logprobs(driver, "x") == expected  # no row has an adapter
    add(driver, "y", adapters[0])
    add(driver, "z", None)
    outputs = driver.run()
    assert outputs["z"].token_ids == outputs["x"].token_ids
    if driver.engine.model.decoder.is_batch_invariant:
        assert outputs["z"].logprobs == expected


def test_proposed_tokens_of_an_adapter_leave_its_output_alone(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    if not model.decoder.is_batch_invariant:
        pytest.skip("this processor has no native operators")
    driver = driver_with(model, *adapters)
    add(driver, "x", adapters[0], [1, 2, 3] * 7, greedy(60))
    expected = driver.run()["x"].token_ids
    table = AdapterTable(AdapterSlots(model.decoder, num_slots=1, max_rank=4))
    config = EngineConfig(block_size=4, num_blocks=64, max_model_len=100, speculation="ngram")
    driver = EngineDriver(model, config, adapters=table)
    driver.engine.load_adapter(adapters[0])
    add(driver, "x", adapters[0], [1, 2, 3] * 7, greedy(60))
    assert driver.run()["x"].token_ids == expected
    assert sum(result.stats.num_proposed_tokens for result in driver.results) > 0


def test_blocks_are_shared_by_equal_content_alone(
    model: LoadedModel, model_folder: Path, tmp_path: Path, adapters: list[Adapter]
) -> None:
    copy = make_tiny_adapter(tmp_path / "copy", model_folder, seed=0)
    same = read_adapter(copy, model.description, max_rank=4)
    assert same.digest == adapters[0].digest
    driver = driver_with(model, *adapters)
    for name, adapter in (("a", adapters[0]), ("b", adapters[1]), ("c", None)):
        add(driver, name, adapter)
        driver.run()
    driver.engine.unload_adapter(adapters[0].digest)
    driver.engine.load_adapter(same)
    add(driver, "again", same)
    outputs = driver.run()
    cached = {r.sequence_id: r.num_cached_tokens for s in driver.results for r in s.reserved}
    assert cached == {"a": 0, "b": 0, "c": 0, "again": 20}
    assert outputs["again"].token_ids == outputs["a"].token_ids


def test_scale_is_part_of_the_digest(
    model: LoadedModel, model_folder: Path, tmp_path: Path, adapters: list[Adapter]
) -> None:
    scaled = make_tiny_adapter(tmp_path / "scaled", model_folder, seed=0, lora_alpha=5)
    assert read_adapter(scaled, model.description, max_rank=4).digest != adapters[0].digest


def test_an_adapter_that_is_not_loaded_is_refused(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    driver = driver_with(model, adapters[0])
    with pytest.raises(AdapterNotLoadedError, match=adapters[0].digest.hex()):
        add(driver, "x", adapters[1])
    without = make_driver(model)
    with pytest.raises(AdapterNotLoadedError, match="none is"):
        without.engine.add(make_request("x", PROMPT, block_size=4, adapter=adapters[0].digest))
    with pytest.raises(NoAdapterSlotError, match="max_adapters is 0"):
        without.engine.load_adapter(adapters[0])


def test_an_adapter_in_use_keeps_its_slot_until_its_sequences_have_ended(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    reference = driver_with(model, *adapters)
    add(reference, "x", adapters[0])
    expected = reference.run()["x"].token_ids
    driver = driver_with(model, adapters[0], num_slots=1)
    add(driver, "x", adapters[0])
    driver.step()
    assert driver.engine.unload_adapter(adapters[0].digest)
    assert not driver.engine.unload_adapter(adapters[0].digest)
    assert driver.engine.adapters == frozenset()
    with pytest.raises(AdapterNotLoadedError):
        add(driver, "late", adapters[0])
    with pytest.raises(NoAdapterSlotError, match="1 of which are free once"):
        driver.engine.load_adapter(adapters[1])
    assert driver.run()["x"].token_ids == expected
    driver.engine.load_adapter(adapters[1])
    assert driver.engine.adapters == {adapters[1].digest}
    with pytest.raises(NoAdapterSlotError, match="all 1 slots"):
        driver.engine.load_adapter(adapters[2])


def test_a_preempted_or_aborted_sequence_and_its_slot(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    driver = driver_with(model, adapters[0], num_slots=1)
    add(driver, "x", adapters[0])
    driver.step()
    driver.engine.unload_adapter(adapters[0].digest)
    driver.engine.abort("x")
    driver.run()
    driver.engine.load_adapter(adapters[1])  # the slot is free
    assert driver.engine.adapters == {adapters[1].digest}


def test_an_unloaded_adapter_comes_back_without_a_copy(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    driver = driver_with(model, adapters[0], num_slots=1)
    add(driver, "x", adapters[0])
    driver.engine.unload_adapter(adapters[0].digest)
    driver.engine.load_adapter(adapters[0])
    add(driver, "y", adapters[0])
    outputs = driver.run()
    assert outputs["x"].token_ids == outputs["y"].token_ids


def test_a_slot_forgets_the_adapter_before(
    model: LoadedModel, model_folder: Path, tmp_path: Path, adapters: list[Adapter]
) -> None:
    """One that adapts fewer modules, at a lower rank, leaves nothing of its predecessor."""
    small = read_adapter(
        make_tiny_adapter(tmp_path / "s", model_folder, seed=9, modules=MODULES[:1], rank=2),
        model.description,
        max_rank=4,
    )
    fresh = driver_with(model, small, num_slots=1)
    add(fresh, "x", small)
    expected = fresh.run()["x"].token_ids
    driver = driver_with(model, adapters[0], num_slots=1)
    driver.engine.unload_adapter(adapters[0].digest)
    driver.engine.load_adapter(small)
    add(driver, "x", small)
    assert driver.run()["x"].token_ids == expected


def test_an_adapter_without_finite_logits_ends_its_own_sequences_alone(
    model: LoadedModel, adapters: list[Adapter]
) -> None:
    """Who reads one from a folder looks at its numbers; this one was not read."""
    read = adapters[1]
    weights = {name: LoraWeights(1e30 * w.a, 1e30 * w.b) for name, w in read.weights.items()}
    huge = replace(read, digest=b"h" * 16, weights=weights)
    driver = driver_with(model, adapters[0])
    add(driver, "own", adapters[0])
    add(driver, "plain", None)
    expected = driver.run()
    driver = driver_with(model, adapters[0], huge)
    for name, adapter in (("huge", huge), ("own", adapters[0]), ("plain", None)):
        add(driver, name, adapter)
    outputs = driver.run()
    assert outputs["huge"].finish_reason is FinishReason.INVALID
    assert "with this adapter the model's logits are not finite" in outputs["huge"].error
    assert {name: outputs[name].token_ids for name in ("own", "plain")} == {
        name: expected[name].token_ids for name in ("own", "plain")
    }
    assert driver.engine.num_free_blocks == 64


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_quantised_weights_take_adapters(model_folder: Path, tmp_path: Path, dtype: str) -> None:
    config = EngineConfig(dtype=dtype, max_model_len=100, quantization="int8")
    model = load_model(model_folder, config)
    folder = make_tiny_adapter(tmp_path / "a", model_folder, seed=1)
    adapter = read_adapter(folder, model.description, max_rank=4)
    driver = driver_with(model, adapter)
    add(driver, "x", adapter)
    add(driver, "y", None)
    outputs = driver.run()
    assert outputs["x"].token_ids != outputs["y"].token_ids
    assert torch.isfinite(torch.tensor([p.logprob for p in outputs["x"].logprobs])).all()
