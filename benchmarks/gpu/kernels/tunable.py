"""What `check_gpu.py --tune` may vary: a tile of an operator, and the cases that judge it.

A bench file offers them by ``def tunables(device) -> list[Tunable]``.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from gpu.kernels.case import Case

Tile = dict[str, int]


@dataclass(frozen=True)
class Tunable:
    """One entry of a GPU's tuning file.

    Attributes:
        op: first key of the entry, as the launcher asks `pagoda_kernels.tuning.tuned` for it.
        shape: second key.
        cases: each proves and times every candidate; all weigh the same.
        candidates: tiles to try; each has every parameter the launcher asks for.
    """

    op: str
    shape: str
    cases: Sequence[Case]
    candidates: Sequence[Tile]


def tiles(**choices: Sequence[int]) -> list[Tile]:
    """Every combination of the choices."""
    names = tuple(choices)
    return [
        dict(zip(names, values, strict=True)) for values in itertools.product(*choices.values())
    ]
