"""Multi-head latent attention with packed projections, as `sources/latents.h` reads it."""

import ctypes
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import torch

from pagoda_kernels.native.packed_linear import PackedLinear, can_pack
from pagoda_kernels.native.structures import Latents


@dataclass(frozen=True, slots=True)
class LatentsShape:
    """Widths of a head, and of what all heads share.

    Attributes:
        kv_rank: of the latent that K and V are made of, R.
        nope_dim: dims of a head's Q and K that do not turn, N.
        rope_dim: dims that turn, after those, P.
        value_dim: of a head's V.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        """Of what is cached of a token."""
        return self.kv_rank + self.rope_dim


def can_pack_latents(kv_up: torch.Tensor, nope_dim: int) -> bool:
    """Tell whether both parts of ``[H, N + value, R]`` can be packed on this machine."""
    head = kv_up[0]
    return can_pack(head[:nope_dim].t()) and can_pack(head[nope_dim:])


class PackedLatents:
    """Latent attention of one layer but for its output projection."""

    __slots__ = ("_arrays", "_kept", "adaptable", "num_heads", "shape", "structure")

    def __init__(
        self,
        shape: LatentsShape,
        *,
        down: PackedLinear,
        q_norm: torch.Tensor | None,
        q_up: PackedLinear | None,
        kv_norm: torch.Tensor,
        kv_up: torch.Tensor,
        is_interleaved: bool,
        eps: float,
    ) -> None:
        """Pack `kv_up`, for which `can_pack_latents` holds; keep the rest alive.

        Args:
            shape: widths.
            down: ``[Q + R + P, hidden]``: to Q's latent (without one: to Q itself), to that of K
                and V, and to the K that turns.
            q_norm: ``[Q]``, of Q's latent; None: there is none.
            q_up: ``[H * (N + P), Q]``; None: as `q_norm`.
            kv_norm: ``[R]``.
            kv_up: ``[H, N + value, R]``: of each head the rows of K, then of V; not kept.
            is_interleaved: pairs of dims turn that lie side by side.
            eps: of both norms.

        Raises:
            ValueError: widths do not fit each other.
        """
        self.shape, self.num_heads = shape, len(kv_up)
        _check(shape, down, q_norm, q_up, kv_norm, kv_up)
        k_up = [PackedLinear(head[: shape.nope_dim].t()) for head in kv_up]
        v_up = [PackedLinear(head[shape.nope_dim :]) for head in kv_up]
        self.adaptable: tuple[PackedLinear, ...] = (down,) if q_up is None else (down, q_up)
        self._kept = q_norm, kv_norm, k_up, v_up
        self._arrays = [
            (c_void_p * self.num_heads)(*(linear.address for linear in each))
            for each in (k_up, v_up)
        ]
        self.structure = Latents(
            down=down.address,
            q_up=None if q_up is None else q_up.address,
            q_norm=None if q_norm is None else q_norm.data_ptr(),
            kv_norm=kv_norm.data_ptr(),
            k_up=self._arrays[0],
            v_up=self._arrays[1],
            kv_rank=shape.kv_rank,
            nope_dim=shape.nope_dim,
            rope_dim=shape.rope_dim,
            value_dim=shape.value_dim,
            eps=eps,
            is_interleaved=is_interleaved,
        )

    @property
    def address(self) -> int:
        """Where the C sources find it, as long as this object lives."""
        return ctypes.addressof(self.structure)


def _check(
    shape: LatentsShape,
    down: PackedLinear,
    q_norm: torch.Tensor | None,
    q_up: PackedLinear | None,
    kv_norm: torch.Tensor,
    kv_up: torch.Tensor,
) -> None:
    rows = len(kv_up) * (shape.nope_dim + shape.rope_dim)
    q_width = rows if q_up is None else q_up.width
    found: dict[str, tuple[Any, Any]] = {
        "kv_up": (list(kv_up.shape[1:]), [shape.nope_dim + shape.value_dim, shape.kv_rank]),
        "kv_norm": (list(kv_norm.shape), [shape.kv_rank]),
        "down": (down.num_outputs, q_width + shape.width),
        "q_up": (rows if q_up is None else q_up.num_outputs, rows),
        "q_norm": (None if q_norm is None else len(q_norm), None if q_up is None else q_width),
    }
    for name, (got, expected) in found.items():
        if got != expected:
            raise ValueError(f"{name}: expected {expected} outputs or elements, got {got}")
