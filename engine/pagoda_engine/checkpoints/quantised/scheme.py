"""What a format of quantised checkpoints has to say for itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.safetensors_header import StoredTensor

FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One tensor of a quantised weight.

    Attributes:
        suffix: of its name, after the projection's and a dot.
        dtypes: that it may have, as safetensors names them.
        shapes: that it may have.
        is_optional: it need not be there.
    """

    suffix: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be told of a weight's codes before they are read.

    Attributes:
        bits: of a code; 0: it is a float.
        group_size: inputs that share a scale; -1: all.
        zeros: zero points: none, or one for all groups; or many.
        is_ordered: groups follow one another.
        scale_dtype: as safetensors names it.
    """

    bits: int
    group_size: int
    zeros: Literal["one", "many"]
    is_ordered: bool
    scale_dtype: str


class Scheme(Protocol):
    """One format, as one checkpoint is configured."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Ends of names of tensors that say nothing of weights."""
        ...

    @property
    def label(self) -> str:
        """Format and kind of number, as heartbeats and ``/v1/models`` say it: ``awq-int4``."""
        ...

    def __str__(self) -> str:
        """Return name and parameters, for logs."""
        ...

    def has(self, name: str, tensors: Mapping[str, StoredTensor]) -> bool:
        """Tell whether a projection is quantised: what files hold decides, not lists of names."""
        ...

    def kind(self, name: str, tensors: Mapping[str, StoredTensor]) -> Kind:
        """Return what is known of a projection that `has` holds for."""
        ...

    def wanted(self, shape: tuple[int, int]) -> tuple[Wanted, ...]:
        """Return the tensors of a weight ``[N, K]``.

        Raises:
            ValueError: a weight of that shape cannot be packed so.
        """
        ...

    def weight(self, shape: tuple[int, int], found: Mapping[str, torch.Tensor]) -> CodedWeight:
        """Return a weight.

        Args:
            shape: (N, K).
            found: tensors by suffix, as `wanted`.

        Raises:
            ValueError: they contradict each other.
        """
        ...


def dtype_of(name: str, tensors: Mapping[str, StoredTensor]) -> str:
    """Return how a tensor is stored, as safetensors names it; empty: it is not there."""
    stored = tensors.get(name)
    return "" if stored is None else stored.dtype


def num_groups(num_inputs: int, group_size: int) -> int:
    """Return G; a group size of -1 is all of K."""
    return 1 if group_size == -1 else -(-num_inputs // group_size)


def groups_of(g_idx: torch.Tensor | None, size: int, count: int) -> torch.Tensor | None:
    """Return ``[K]`` int64, the group of each input; None where they simply follow one another.

    Args:
        g_idx: as a checkpoint has it; None, or empty: they do.
        size: inputs of a group.
        count: groups.

    Raises:
        ValueError: it names a group that there is not.
    """
    if g_idx is None or not len(g_idx):
        return None
    groups = g_idx.long()
    low, high = int(groups.min()), int(groups.max())
    if low < 0 or high >= count:
        raise ValueError(f"g_idx names groups {low} to {high}, there are {count}, from 0")
    plain = torch.arange(len(groups), device=groups.device) // size
    return None if torch.equal(groups, plain) else groups
