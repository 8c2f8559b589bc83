"""What this device can do at most: bytes moved by a copy, products of bf16 matrices.

Measured in every run, because clocks, power limits and neighbours differ from run to run. Data is
random: zeros draw less power and run faster.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu.harness.timing import Clock

COPY_BYTES = (256 << 20, 1 << 30, 4 << 30)
MATMUL_SIZES = (4096, 8192)
BUDGET_SECONDS = 0.6


@dataclass(frozen=True)
class Ceilings:
    """Best medians of one run.

    Attributes:
        copy_bytes_per_second: bytes read plus bytes written by a device-to-device copy.
        matmul_flops_per_second: of a square bf16 product with fp32 accumulation.
        launch_seconds: what the clock says of a launch that does nothing.
    """

    copy_bytes_per_second: float
    matmul_flops_per_second: float
    launch_seconds: float

    def floor_seconds(self, num_bytes: int, num_flops: int) -> float:
        """Least time for that many bytes and operations; 0 if both are 0."""
        return max(num_bytes / self.copy_bytes_per_second, num_flops / self.matmul_flops_per_second)

    def write(self, path: Path) -> None:
        """Save for the processes that time the kernels."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Ceilings":
        """Inverse of `write`."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def measure_ceilings(
    clock: Clock,
    device: Any,
    copy_bytes: Iterable[int] = COPY_BYTES,
    matmul_sizes: Iterable[int] = MATMUL_SIZES,
    budget_seconds: float = BUDGET_SECONDS,
) -> Ceilings:
    """Time copies and products of several sizes; sizes that do not fit the memory are left out."""
    import torch

    nothing = clock.measure(lambda: None, budget_seconds / 10).p50
    copies, products = [], []
    for size in copy_bytes:
        if _fits(torch, device, 2 * size):
            source = torch.randint(1, 100, (size,), dtype=torch.uint8, device=device)
            target = torch.empty_like(source)
            timing = clock.measure(lambda s=source, t=target: t.copy_(s), budget_seconds)
            copies.append(2 * size / timing.p50)
            del source, target
    for size in matmul_sizes:
        a, b = torch.randn(2, size, size, device=device).to(torch.bfloat16)
        timing = clock.measure(lambda a=a, b=b: a @ b, budget_seconds)
        products.append(2 * size**3 / timing.p50)
        del a, b
    return Ceilings(max(copies), max(products), nothing)


def _fits(torch: Any, device: Any, num_bytes: int) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return bool(num_bytes < 0.9 * free)
