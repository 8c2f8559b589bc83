"""What a worker says while it starts, and when it cannot."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from support.worker_cluster import SMALL

from pagoda.decode.config import DecodeSettings
from pagoda.rpc.v1 import status_pb2
from pagoda.runtime.errors import SettingsError
from pagoda.runtime.health import Health
from pagoda.runtime.service import ServiceContext
from pagoda.runtime.settings import CommonSettings
from pagoda.worker.metrics import WorkerMetrics
from pagoda.worker.open_worker import open_worker

pytestmark = pytest.mark.integration


class RecordedHealth(Health):
    """Remembers why the model was not ready."""

    def __init__(self) -> None:
        super().__init__()
        self.details: list[str] = []

    def set_ready(self, component: str, is_ready: bool, detail: str = "") -> None:
        super().set_ready(component, is_ready, detail)
        self.details.append(detail)


async def start(
    common: CommonSettings, health: Health, registry: CollectorRegistry, **settings: object
) -> None:
    """Open a worker and close it."""
    async with asyncio.TaskGroup() as tasks:
        context = ServiceContext("decode", "decode-1", common, health, asyncio.Event(), tasks)
        async with open_worker(
            context,
            DecodeSettings.model_validate(SMALL | settings),
            role=status_pb2.ROLE_DECODE,
            metrics=WorkerMetrics(registry),
        ):
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
