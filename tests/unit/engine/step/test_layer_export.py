import pytest
import torch
from support.engine_driver import EngineDriver
from support.thread_queue import ThreadQueue
from support.tiny_engine import PROMPT, greedy

from pagoda_engine import ComputedLayers, EngineConfig, LoadedModel

CONFIG = {"block_size": 4, "num_blocks": 32, "max_model_len": 100}  # PROMPT has 21 tokens


def export(model: LoadedModel, **fields: object) -> tuple[EngineDriver, list[ComputedLayers]]:
    """Prefill PROMPT for another engine; returns what was reported on the way."""
    reports: list[ComputedLayers] = []
    config = EngineConfig(**{**CONFIG, **fields})
    driver = EngineDriver(model, config, on_layers=reports.extend)
    driver.add("a", PROMPT, sampling=greedy(), prefill_only=True)
    driver.add("b", PROMPT[::-1], sampling=greedy())
    driver.run()
    return driver, reports


@pytest.mark.parametrize(("num_groups", "groups"), [(1, []), (2, [(0, 1)]), (9, [(0, 1), (1, 1)])])
def test_groups_but_the_last_are_reported(
    tiny_model: LoadedModel, num_groups: int, groups: list[tuple[int, int]]
) -> None:
    _, reports = export(tiny_model, num_layer_groups=num_groups)
    assert [(r.first_layer, r.num_layers) for r in reports] == groups  # the model has 3 layers
    assert all((r.sequence_id, r.first_block, len(r.block_ids)) == ("a", 0, 6) for r in reports)


def test_layers_name_the_blocks_that_the_steps_name(tiny_model: LoadedModel) -> None:
    driver, reports = export(tiny_model, num_layer_groups=3, max_num_batched_tokens=10)
    computed = [c for result in driver.results for c in result.computed]
    assert len(computed) > 2
    for first_layer in (0, 1):
        found = [(r.first_block, r.block_ids) for r in reports if r.first_layer == first_layer]
        assert found == [(c.first_block, c.block_ids) for c in computed]


def test_layers_hold_their_kv_when_they_are_reported(tiny_model: LoadedModel) -> None:
    seen: list[tuple[ComputedLayers, torch.Tensor]] = []
    queue = ThreadQueue(0)

    def read(reports: tuple[ComputedLayers, ...]) -> None:
        for report in reports:
            report.wait()
            blocks = driver.engine.kv_cache.tensor[:, :, list(report.block_ids)]
            last = report.first_layer + report.num_layers
            seen.append((report, blocks[:, report.first_layer : last].clone()))

    config = EngineConfig(**CONFIG, num_layer_groups=3)
    driver = EngineDriver(tiny_model, config, on_layers=read, queue=queue)
    driver.add("a", PROMPT, sampling=greedy(), prefill_only=True)
    driver.run()
    assert len(seen) == 2
    for report, kv in seen:
        blocks = driver.engine.kv_cache.tensor[:, :, list(report.block_ids)]
        last = report.first_layer + report.num_layers
        assert torch.equal(kv, blocks[:, report.first_layer : last])
        assert kv.any()
    queue.close()
