"""What a worker says while it starts, and when it cannot."""

import asyncio
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry
from support.tiny_checkpoints import make_tiny_checkpoint
from support.worker_cluster import SMALL

from pagoda.rpc.v1 import status_pb2
from pagoda_decode.config import DecodeSettings
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import ModelFolderError, SettingsError
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.service import ServiceContext, StoppedError
from pagoda_worker.open_worker import open_worker
from pagoda_worker.sequences import LiveSequence
from pagoda_worker.telemetry.metrics import WorkerMetrics

pytestmark = pytest.mark.integration


class RecordedHealth(Health):
    """Remembers why the model was not ready, and sets `stop` once it says `stop_at`."""

    def __init__(self, stop_at: str | None = None) -> None:
        super().__init__()
        self.details: list[str] = []
        self.stop = asyncio.Event()
        self._stop_at = stop_at

    def set_ready(self, component: str, is_ready: bool, detail: str = "") -> None:
        super().set_ready(component, is_ready, detail)
        if component == "model":
            self.details.append(detail)
            if detail == self._stop_at:
                self.stop.set()


async def start(
    common: CommonSettings, health: RecordedHealth, registry: CollectorRegistry, **settings: object
) -> None:
    """Open a worker and close it."""
    async with asyncio.TaskGroup() as tasks:
        context = ServiceContext("decode", "decode-1", common, health, health.stop, tasks)
        async with open_worker(
            context,
            DecodeSettings.model_validate(SMALL | settings),
            LiveSequence,
            role=status_pb2.ROLE_DECODE,
            metrics=WorkerMetrics(registry),
        ):
            assert not health.is_ready, "the role has not begun to serve"
            health.set_ready("decode", True)
            assert health.is_ready


async def test_readiness_and_metrics_name_the_phases(worker_common: CommonSettings) -> None:
    health, registry = RecordedHealth(), CollectorRegistry()
    await start(worker_common, health, registry)

    assert health.details == ["loading weights", "warming up", "allocating KV", "warming up", ""]
    for phase in ("loading_weights", "allocating_kv", "warming_up"):
        seconds = registry.get_sample_value("pagoda_startup_seconds", {"phase": phase})
        assert seconds is not None
        assert seconds >= 0


async def test_memory_that_does_not_suffice_is_a_problem_of_the_settings(
    worker_common: CommonSettings,
) -> None:
    health = RecordedHealth()
    with pytest.raises(ExceptionGroup) as raised:
        await start(worker_common, health, CollectorRegistry(), num_blocks=2, max_model_len=512)

    (error,) = raised.value.exceptions
    assert isinstance(error, SettingsError)
    assert "raise PAGODA_DECODE_NUM_BLOCKS to 32 or more" in str(error)
    assert not health.is_ready


@pytest.mark.parametrize("detail", ["loading weights", "warming up", "allocating KV", ""])
async def test_a_start_that_is_told_to_stop_ends(
    worker_common: CommonSettings, detail: str
) -> None:
    # Nobody listens there, so that a start that goes on waits for half a minute.
    common = worker_common.model_copy(update={"nats_url": "nats://127.0.0.1:1"})
    health = RecordedHealth(stop_at=detail)
    async with asyncio.timeout(60):
        with pytest.raises(ExceptionGroup) as raised:
            await start(common, health, CollectorRegistry())

    (error,) = raised.value.exceptions
    assert isinstance(error, StoppedError)
    assert not health.is_ready


async def test_a_model_that_cannot_be_used_is_a_problem_of_its_folder(
    worker_common: CommonSettings, tmp_path: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "broken", num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    common = worker_common.model_copy(update={"model": str(folder)})
    with pytest.raises(ExceptionGroup) as raised:
        await start(common, RecordedHealth(), CollectorRegistry())

    (error,) = raised.value.exceptions
    assert isinstance(error, ModelFolderError)
    assert "model-00002-of-00002.safetensors: is missing" in str(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
async def test_a_device_that_is_not_there_is_named_by_its_setting(
    worker_common: CommonSettings,
) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await start(worker_common, RecordedHealth(), CollectorRegistry(), device="cuda")

    (error,) = raised.value.exceptions
    assert isinstance(error, SettingsError)
    assert "PAGODA_DECODE_DEVICE is 'cuda', must be cpu: torch" in str(error)
