"""The ceilings of the device as the first group of a plan, left in a file for the others."""

from collections.abc import Iterable
from dataclasses import asdict

import torch
from ceilings import measure_ceilings
from points import CEILINGS_FILE, Row, Setting, Subject
from timing import CLOCKS


class CeilingsSubject(Subject):
    """Measured when it is built; has no points."""

    def __init__(
        self, setting: Setting, *, copy_bytes: Iterable[int], matmul_sizes: Iterable[int]
    ) -> None:
        clock = CLOCKS["cuda" if setting.device == "cuda" else "host"]()
        budget_seconds = 0.4 if setting.device == "cuda" else 0.01
        ceilings = measure_ceilings(
            clock, torch.device(setting.device), copy_bytes, matmul_sizes, budget_seconds
        )
        ceilings.write(setting.folder / CEILINGS_FILE)
        self.facts: Row = asdict(ceilings)
