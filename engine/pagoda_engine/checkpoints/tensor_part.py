"""What is wanted of one tensor of a checkpoint: a slice, its transpose, its rows in another order.

Knows names and shapes. Knows nothing of files, or of what a tensor is for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

Arrange = Callable[[torch.Tensor], torch.Tensor]
"""Takes a tensor as it is stored; returns what is wanted of it, in order, maybe as a view."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a checkpoint.

    Attributes:
        name: in the checkpoint.
        shape: there; in MXFP4 that of the numbers which it stands for.
        arrange: None: all of it is wanted, as it is. In MXFP4 it must leave the last dim alone.
        scales: name of its scales, if it is in MXFP4; empty: it is not.
    """

    name: str
    shape: tuple[int, ...]
    arrange: Arrange | None = None
    scales: str = ""
