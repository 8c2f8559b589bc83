"""Options of an engine's start as a service's defaults have them."""

from typing import Any

from pagoda_engine import EngineOptions


def make_options(**fields: Any) -> EngineOptions:
    """Return options that leave all to the device but for `fields`."""
    values = {"block_size": 16, "max_num_waiting": 256, "gpu_memory_utilization": 0.9}
    return EngineOptions(**(values | fields))
