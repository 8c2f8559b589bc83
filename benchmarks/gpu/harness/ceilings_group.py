"""The ceilings of the device as the first group of a plan, left in a file for the others."""

from dataclasses import asdict

from gpu.harness.ceilings import BUDGET_SECONDS, COPY_BYTES, MATMUL_SIZES, measure_ceilings
from gpu.harness.points import CEILINGS_FILE, Group, Setting, Subject
from gpu.harness.rows import Row
from gpu.harness.timing import CLOCKS

_SIZES = {
    "all": (COPY_BYTES, MATMUL_SIZES, BUDGET_SECONDS),
    "real": ((1 << 30, 4 << 30), (8192,), 0.4),
    "tiny": ((1 << 20,), (64,), 0.01),
}
"""By scope: bytes of copies, sizes of products, seconds for each."""


class CeilingsSubject(Subject):
    """Measured when it is built; has no points."""

    def __init__(self, setting: Setting, scope: str) -> None:
        import torch  # here: plans of kernels are read without

        ceilings = measure_ceilings(
            CLOCKS[setting.device](), torch.device(setting.device), *_SIZES[scope]
        )
        ceilings.write(setting.folder / CEILINGS_FILE)
        self.facts: Row = asdict(ceilings)


def ceilings_group(scope: str) -> Group:
    """The group that measures them."""
    return Group("ceilings", lambda setting: CeilingsSubject(setting, scope), (), weight=3.0)
