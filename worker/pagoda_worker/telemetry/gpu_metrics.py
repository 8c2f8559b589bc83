"""This worker's GPU in /metrics: memory, load, heat and power from NVML, bytes from PyTorch.

NVML is asked when somebody scrapes, at most once a second, in a thread of its own: a driver that
hangs costs a scrape its values and the event loop a tenth of a second. What NVML does not know is
absent. Knows nothing of engines or sequences.
"""

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pynvml
import torch
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

CACHE_SECONDS = 1.0
TIMEOUT_SECONDS = 0.1

NVML_METRICS = {
    "pagoda_gpu_memory_used_bytes": "Memory of this worker's GPU in use, by whatever process",
    "pagoda_gpu_memory_total_bytes": "Memory of this worker's GPU",
    "pagoda_gpu_process_memory_bytes": "Memory of the GPU that this process uses",
    "pagoda_gpu_sm_utilization_ratio": "Share of the last moment in which a kernel ran",
    "pagoda_gpu_memory_utilization_ratio": "Share of it in which memory was read or written",
    "pagoda_gpu_temperature_celsius": "Temperature of the GPU",
    "pagoda_gpu_power_watts": "Power that the GPU draws",
}


class Nvml(Protocol):
    """What is used of the module `pynvml`. Every call may raise `NVMLError`, or hang."""

    NVMLError: type[Exception]
    NVML_TEMPERATURE_GPU: int

    def nvmlInit(self) -> None:
        """Load the driver's library; once for the process."""
        ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        """Find a GPU, or a MIG slice of one."""
        ...

    def nvmlDeviceGetIndex(self, handle: Any) -> int:
        """Return its number among all GPUs of the host, whatever is visible here."""
        ...

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        """Return `used` and `total`, in bytes."""
        ...

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Iterable[Any]:
        """Return `pid`, as the host counts them, and `usedGpuMemory` in bytes or None."""
        ...

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """Return `gpu` and `memory`, in percent."""
        ...

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        """Return degrees Celsius."""
        ...

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        """Return milliwatts."""
        ...


class GpuCollector(Collector):
    """One GPU as NVML sees it. Scraped by one thread at a time."""

    def __init__(
        self,
        uuid: str,
        *,
        nvml: Nvml = pynvml,
        pid: int | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet.

        Args:
            uuid: of the GPU, as PyTorch says it: hexadecimal digits and dashes.
            nvml: the module `pynvml`.
            pid: whose memory is reported; None: this process'. In a container whose process ids
                are not the host's it is unknown to NVML and absent.
            timeout_seconds: how long a scrape waits for NVML.
            clock: seconds, for the age of what was read.
        """
        self._uuid = uuid
        self._nvml = nvml
        self._pid = os.getpid() if pid is None else pid
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._handle: Any = None
        self._labels = ("", "")
        self._is_unusable = False
        self._known_problems: set[str] = set()
        self._values: Mapping[str, float] = {}
        self._read_at = -CACHE_SECONDS
        self._reader: threading.Thread | None = None

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering this does not read."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return what is known of the GPU now; nothing if NVML did not answer in time."""
        values = self._recent_values()
        for name, documentation in NVML_METRICS.items():
            if name in values:
                family = GaugeMetricFamily(name, documentation, labels=("gpu", "uuid"))
                family.add_metric(self._labels, values[name])
                yield family

    def _recent_values(self) -> Mapping[str, float]:
        if self._is_unusable or self._clock() - self._read_at < CACHE_SECONDS:
            return self._values
        if self._reader is None or not self._reader.is_alive():
            self._reader = threading.Thread(target=self._read, name="nvml", daemon=True)
            self._reader.start()
        self._reader.join(self._timeout_seconds)
        if self._reader.is_alive():
            self._note(f"NVML did not answer within {self._timeout_seconds:g} s")
            return {}
        return self._values

    def _read(self) -> None:
        if self._handle is None:
            try:
                self._open()
            except self._nvml.NVMLError as error:
                self._note(f"no GPU metrics: {error}")
                self._is_unusable = True
                return
        nvml, handle, values = self._nvml, self._handle, dict[str, float]()
        if memory := self._ask(nvml.nvmlDeviceGetMemoryInfo, handle):
            values["pagoda_gpu_memory_used_bytes"] = memory.used
            values["pagoda_gpu_memory_total_bytes"] = memory.total
        for process in self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
            if process.pid == self._pid and process.usedGpuMemory is not None:
                values["pagoda_gpu_process_memory_bytes"] = process.usedGpuMemory
        if rates := self._ask(nvml.nvmlDeviceGetUtilizationRates, handle):
            values["pagoda_gpu_sm_utilization_ratio"] = rates.gpu / 100
            values["pagoda_gpu_memory_utilization_ratio"] = rates.memory / 100
        celsius = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            values["pagoda_gpu_temperature_celsius"] = celsius
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        if milliwatts is not None:
            values["pagoda_gpu_power_watts"] = milliwatts / 1000
        self._values, self._read_at = values, self._clock()

    def _open(self) -> None:
        self._nvml.nvmlInit()
        uuid = f"GPU-{self._uuid}"
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError:  # perhaps it is a slice of a GPU
            uuid = f"MIG-{self._uuid}"
            handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        index = self._ask(self._nvml.nvmlDeviceGetIndex, handle)
        self._labels = ("" if index is None else str(index), uuid)
        self._handle = handle

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what NVML says; None if it cannot."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            self._note(f"{getattr(function, '__name__', function)}: {error}")
            return None

    def _note(self, problem: str) -> None:
        if problem not in self._known_problems:
            self._known_problems.add(problem)
            logger.warning("GPU %s: %s", self._uuid, problem)


def register_gpu_metrics(registry: CollectorRegistry, device: torch.device) -> None:
    """Report a CUDA device in `registry`, whatever CUDA_VISIBLE_DEVICES made of its number."""
    if device.type != "cuda":
        return
    registry.register(GpuCollector(str(torch.cuda.get_device_properties(device).uuid)))
    for name, documentation, read in (
        ("allocated", "GPU memory in PyTorch's tensors", torch.cuda.memory_allocated),
        ("reserved", "GPU memory that PyTorch holds", torch.cuda.memory_reserved),
    ):
        gauge = Gauge(f"pagoda_torch_{name}_bytes", documentation, registry=registry)
        gauge.set_function(functools.partial(read, device))
