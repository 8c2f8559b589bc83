"""A price, and how tests set prices and look at rows."""

from collections.abc import Awaitable, Callable
from typing import Any

RATES = {
    "input_micros": 1_000_000,
    "cached_device_micros": 100_000,
    "cached_cpu_micros": 200_000,
    "cached_nvme_micros": 500_000,
    "output_micros": 3_000_000,
    "batch_discount_percent": 50,
}

SetPrice = Callable[..., Awaitable[str]]  # (model, valid_from, **rates) -> price id
Rows = Callable[[], Awaitable[dict[str, dict[str, Any]]]]  # all rows of usage, by request id
