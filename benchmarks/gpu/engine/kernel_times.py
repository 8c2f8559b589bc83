"""What the device ran during some steps: every kernel and copy that the profiler saw, added up.

Says where the time of a step goes that is above its prediction. Knows traces. Knows no models.
"""

import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_CATEGORIES = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}
_MICROSECOND = 1e-6
_NAME_LENGTH = 80  # those of CUTLASS spell out their types

Event = dict[str, Any]


@dataclass(frozen=True)
class KernelTime:
    """One kernel at one grid: products of different widths share a name, not a grid.

    Attributes:
        name: of the kernel, or of the kind of copy.
        grid: blocks in x, y and z; empty for a copy.
        per_step: launches in one step, on average.
        median_seconds: of one launch.
        seconds: of all launches of one step.
    """

    name: str
    grid: tuple[int, ...]
    per_step: float
    median_seconds: float
    seconds: float


@dataclass(frozen=True)
class DeviceTime:
    """The device's time in one step, on average.

    Attributes:
        busy_seconds: something ran.
        idle_seconds: nothing did, between the first and the last launch. The profiler adds to it.
        kernels: by time, longest first.
    """

    busy_seconds: float
    idle_seconds: float
    kernels: tuple[KernelTime, ...]


def device_events(run: Callable[[], object], device: torch.device) -> list[Event]:
    """Run something and return what the device did meanwhile, as events of a Chrome trace.

    Nothing may be under way before; waits until the device is done. On a CPU: torch's operators.
    """
    is_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as found:  # without, some versions warn
        run()
        if is_cuda:
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    return [e for e in trace["traceEvents"] if e.get("cat") in _CATEGORIES[device.type]]


def device_time(events: list[Event], num_steps: int) -> DeviceTime:
    """Add up events of so many steps, one at least. Events overlap where streams do."""
    busy, end = 0.0, 0.0
    durations: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    in_order = sorted(events, key=lambda event: float(event["ts"]))
    for event in in_order:
        start, duration = float(event["ts"]), float(event["dur"])
        busy += max(0.0, start + duration - max(start, end))
        end = max(end, start + duration)
        grid = tuple(event.get("args", {}).get("grid", ()))
        durations.setdefault((event["name"][:_NAME_LENGTH], grid), []).append(duration)
    span = end - float(in_order[0]["ts"])
    kernels = [
        KernelTime(
            name,
            grid,
            len(of_one) / num_steps,
            statistics.median(of_one) * _MICROSECOND,
            sum(of_one) * _MICROSECOND / num_steps,
        )
        for (name, grid), of_one in durations.items()
    ]
    return DeviceTime(
        busy * _MICROSECOND / num_steps,
        (span - busy) * _MICROSECOND / num_steps,
        tuple(sorted(kernels, key=lambda kernel: -kernel.seconds)),
    )
