"""GPU metrics from a scripted NVML, from the real one without a driver, and from a real GPU."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
from prometheus_client import CollectorRegistry

from pagoda_worker.telemetry.gpu_metrics import (
    CACHE_SECONDS,
    NVML_METRICS,
    GpuCollector,
    register_gpu_metrics,
)

UUID = "8c22a9b4-0000-1111-2222-333344445555"
PID = 4242


class ScriptedNvml:
    """Answers for one GPU. `hook` is called at the start of each call and may raise or wait."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0

    def __init__(
        self, hook: Callable[[str], None] = lambda name: None, *, uuid: str = f"GPU-{UUID}"
    ) -> None:
        self.calls: list[str] = []
        self.used = 60 << 30
        self._hook = hook
        self._uuid = uuid

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self._hook(name)

    def nvmlInit(self) -> None:
        self._called("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._called("handle")
        if uuid != self._uuid:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetIndex(self, handle: Any) -> int:
        self._called("index")
        return 3

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        self._called("memory")
        return SimpleNamespace(used=self.used, total=141 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        self._called("processes")
        return [
            SimpleNamespace(pid=PID, usedGpuMemory=50 << 30),
            SimpleNamespace(pid=PID + 1, usedGpuMemory=10 << 30),
        ]

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        self._called("rates")
        return SimpleNamespace(gpu=87, memory=41)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        self._called("temperature")
        return 0 if sensor else 55

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        self._called("power")
        return 612_500


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def collector(nvml: ScriptedNvml, *, timeout_seconds: float = 30.0, **options: Any) -> GpuCollector:
    return GpuCollector(UUID, nvml=nvml, pid=PID, timeout_seconds=timeout_seconds, **options)


def scrape(collector: GpuCollector) -> dict[str, float]:
    return {family.name: family.samples[0].value for family in collector.collect()}


def raising(*names: str) -> Callable[[str], None]:
    def hook(name: str) -> None:
        if name in names:
            raise ScriptedNvml.NVMLError("Not Supported")

    return hook


def test_everything_nvml_knows_in_base_units() -> None:
    assert scrape(collector(ScriptedNvml())) == {
        "pagoda_gpu_memory_used_bytes": 60 << 30,
        "pagoda_gpu_memory_total_bytes": 141 << 30,
        "pagoda_gpu_process_memory_bytes": 50 << 30,
        "pagoda_gpu_sm_utilization_ratio": 0.87,
        "pagoda_gpu_memory_utilization_ratio": 0.41,
        "pagoda_gpu_temperature_celsius": 55,
        "pagoda_gpu_power_watts": 612.5,
    }


@pytest.mark.parametrize("prefix", ["GPU", "MIG"])
def test_the_gpu_is_found_by_uuid_and_named_by_index_and_uuid(prefix: str) -> None:
    registry = CollectorRegistry(auto_describe=True)
    nvml = ScriptedNvml(uuid=f"{prefix}-{UUID}")
    registry.register(collector(nvml))
    assert nvml.calls == []  # registering reads nothing

    labels = {"gpu": "3", "uuid": f"{prefix}-{UUID}"}
    assert registry.get_sample_value("pagoda_gpu_power_watts", labels) == 612.5


def test_nvml_is_asked_once_a_second_at_most() -> None:
    nvml, clock = ScriptedNvml(), Clock()
    collecting = collector(nvml, clock=clock)
    assert scrape(collecting)["pagoda_gpu_memory_used_bytes"] == 60 << 30
    nvml.used = 70 << 30
    clock.now = 0.9 * CACHE_SECONDS
    assert scrape(collecting)["pagoda_gpu_memory_used_bytes"] == 60 << 30
    clock.now = CACHE_SECONDS
    assert scrape(collecting)["pagoda_gpu_memory_used_bytes"] == 70 << 30
    assert nvml.calls.count("init") == nvml.calls.count("handle") == 1
    assert nvml.calls.count("memory") == 2


def test_what_a_gpu_does_not_tell_is_absent_and_noted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    collecting = collector(ScriptedNvml(raising("rates", "power", "index")), clock=clock)
    for now in (0.0, 10.0, 20.0):
        clock.now = now
        assert set(NVML_METRICS) - set(scrape(collecting)) == {
            "pagoda_gpu_sm_utilization_ratio",
            "pagoda_gpu_memory_utilization_ratio",
            "pagoda_gpu_power_watts",
        }
    assert len(caplog.records) == 3


def test_a_process_that_nvml_does_not_list_has_no_memory_of_its_own() -> None:
    collecting = GpuCollector(UUID, nvml=ScriptedNvml(), pid=1, timeout_seconds=30)
    assert "pagoda_gpu_process_memory_bytes" not in scrape(collecting)


@pytest.mark.parametrize("call", ["init", "handle"])
def test_without_a_usable_driver_all_is_absent_and_never_asked_again(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    nvml, clock = ScriptedNvml(raising(call)), Clock()
    collecting = collector(nvml, clock=clock)
    assert scrape(collecting) == {}
    num_calls = len(nvml.calls)
    for now in (10.0, 20.0):
        clock.now = now
        assert scrape(collecting) == {}
    assert len(nvml.calls) == num_calls
    assert len(caplog.records) == 1


def test_a_driver_that_hangs_costs_its_values_and_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_hanging, may_go_on = threading.Event(), threading.Event()

    def hang(name: str) -> None:
        if name == "power":
            is_hanging.set()
            may_go_on.wait()

    nvml = ScriptedNvml(hang)
    collecting = collector(nvml, timeout_seconds=0.01, clock=Clock())
    assert scrape(collecting) == {}
    assert is_hanging.wait(60)
    for _ in range(3):
        assert scrape(collecting) == {}
    assert nvml.calls.count("power") == 1  # one thread hangs, not three
    may_go_on.set()
    assert collecting._reader is not None
    collecting._reader.join(60)
    assert set(scrape(collecting)) == set(NVML_METRICS)
    assert len(caplog.records) == 1


def test_the_real_nvml_without_this_gpu_is_absent(caplog: pytest.LogCaptureFixture) -> None:
    collecting = GpuCollector(UUID, nvml=pynvml, timeout_seconds=30)
    with caplog.at_level(logging.INFO):
        assert scrape(collecting) == {}
        assert scrape(collecting) == {}
    assert len(caplog.records) == 1
    assert UUID in caplog.text


def test_a_worker_without_a_gpu_reports_and_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    with caplog.at_level(logging.DEBUG):
        register_gpu_metrics(registry, torch.device("cpu"))
        assert list(registry.collect()) == []
    assert not caplog.records


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("visible", ["all", "last"])
def test_a_real_gpu_has_every_metric(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if visible == "last":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(torch.cuda.device_count() - 1))
    code = """
import threading
import torch
from prometheus_client import CollectorRegistry
from pagoda_worker.telemetry.gpu_metrics import register_gpu_metrics
held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
registry = CollectorRegistry()
register_gpu_metrics(registry, held.device)
list(registry.collect())  # the first scrape may not wait until NVML has started
for thread in threading.enumerate():
    if thread.name == "nvml":
        thread.join(60)
for family in registry.collect():
    print(family.name, family.samples[0].value)
"""
    lines = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    ).stdout.splitlines()
    values = {name: float(value) for name, value in map(str.split, lines)}

    own = {"pagoda_gpu_process_memory_bytes"}  # absent where containers count processes anew
    assert set(NVML_METRICS) - own <= set(values)
    assert values["pagoda_torch_allocated_bytes"] == 1 << 28
    assert values["pagoda_torch_reserved_bytes"] >= 1 << 28
    assert (
        1 << 28 < values["pagoda_gpu_memory_used_bytes"] < values["pagoda_gpu_memory_total_bytes"]
    )
    assert 0 <= values["pagoda_gpu_sm_utilization_ratio"] <= 1
