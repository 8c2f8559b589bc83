"""Mixture of experts with packed projections; each row's result depends on that row alone."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagoda_kernels.native.library import SCRATCH_BYTES, NativeLibrary, native_library
from pagoda_kernels.native.memory import room_of
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.structures import Experts, FeedForward


@dataclass(frozen=True, slots=True)
class PackedFeedForward:
    """The two projections of a feed-forward part.

    Attributes:
        gate_up: with a gate, or, of no expert, with an activation.
        down: back to hidden.
    """

    gate_up: PackedLinear
    down: PackedLinear

    @property
    def structure(self) -> FeedForward:
        """What the C sources take."""
        return FeedForward(gate_up=self.gate_up.address, down=self.down.address)


@dataclass(frozen=True, slots=True)
class PackedRouter:
    """How experts are chosen, see `route_topk`.

    Attributes:
        weight: ``[E, hidden]``, in the dtype of the rows, or in fp32 with an fp32 product.
        per_row: experts of a row.
        is_sigmoid: scores are the sigmoid of the logits; else their softmax.
        renormalise: divide the weights of a row by their sum.
        bias: ``[E]`` fp32, decides the choice only; None: there is none.
        num_groups: equal groups of experts; 1 for none.
        top_groups: groups to choose from.
        scale: factor of the weights.
        expert_scales: ``[E]`` fp32, factors of the weights of experts that were chosen; None: there
            are none.
    """

    weight: PackedLinear
    per_row: int
    is_sigmoid: bool
    renormalise: bool
    bias: torch.Tensor | None = None
    num_groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    expert_scales: torch.Tensor | None = None


class PackedExperts:
    """A weighted sum of the experts that the router chooses for a row, and of the shared one."""

    __slots__ = ("_array", "_kept", "_library", "dtype", "experts", "structure", "width")

    def __init__(
        self,
        router: PackedRouter,
        experts: Sequence[PackedFeedForward],
        *,
        shared: PackedFeedForward | None = None,
        shared_gate: PackedLinear | None = None,
    ) -> None:
        """Tell the C sources where everything is; keeps it alive.

        Args:
            router: of as many experts.
            experts: all of one shape.
            shared: every row goes through it besides.
            shared_gate: ``[1, hidden]``, whose sigmoid is the weight of `shared`; None: it counts
                as it is.

        Raises:
            ValueError: they are not of one model, or there are too many for a thread's memory.
        """
        library = native_library()
        assert library is not None, "there are no packed projections without it"
        self._library: NativeLibrary = library
        self.width, self.dtype = experts[0].down.num_outputs, experts[0].down.dtype
        _check(router, experts, shared, shared_gate)
        bias = None if router.bias is None else router.bias.float().contiguous()
        scales = router.expert_scales
        scales = None if scales is None else scales.float().contiguous()
        self.experts = tuple(experts)
        self._array = (FeedForward * len(experts))(*(each.structure for each in experts))
        self._kept = router, shared, shared_gate, bias, scales
        self.structure = Experts(
            router=router.weight.address,
            choice_bias=None if bias is None else bias.data_ptr(),
            experts=self._array,
            shared=FeedForward() if shared is None else shared.structure,
            shared_gate=None if shared_gate is None else shared_gate.address,
            num_experts=len(experts),
            per_row=router.per_row,
            num_groups=router.num_groups,
            top_groups=router.top_groups,
            scale=router.scale,
            is_sigmoid=router.is_sigmoid,
            is_renormalised=router.renormalise,
            expert_scales=None if scales is None else scales.data_ptr(),
        )
        needed = library.experts_scratch_bytes(self.structure)
        if needed > SCRATCH_BYTES:
            raise ValueError(
                f"experts: {len(experts)} need {needed} bytes of a thread's {SCRATCH_BYTES}"
            )

    def __call__(self, x: torch.Tensor, router_x: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[M, hidden]`` for x ``[M, hidden]`` of the experts' dtype.

        `router_x`, as x, is what the router reads; None: x.
        """
        router_x = x if router_x is None else router_x
        for name, rows in (("x", x), ("router_x", router_x)):
            if rows.dtype is not self.dtype or rows.shape != (len(x), self.width):
                raise ValueError(
                    f"{name}: expected {self.dtype} [M, {self.width}], got {rows.dtype} "
                    f"{list(rows.shape)}"
                )
        x, router_x = x.contiguous(), router_x.contiguous()
        y, room = torch.empty_like(x), self.room(len(x))
        self._library.experts(
            self._library.threads(torch.get_num_threads()),
            self.structure, x.data_ptr(), router_x.data_ptr(), len(x), y.data_ptr(),
            room.data_ptr(),
        )  # fmt: skip
        return y

    def room(self, num_rows: int) -> torch.Tensor:
        """Return memory for what so many rows need besides, where a line of the cache begins."""
        return room_of(self._library.experts_bytes(self.structure, num_rows))

    @property
    def address(self) -> int:
        """Where the C sources find it, as long as this object lives."""
        return ctypes.addressof(self.structure)


def _check(
    router: PackedRouter,
    experts: Sequence[PackedFeedForward],
    shared: PackedFeedForward | None,
    shared_gate: PackedLinear | None,
) -> None:
    first, count = experts[0], len(experts)
    hidden, inner, dtype = first.down.num_outputs, first.down.width, first.down.dtype
    for each in experts:
        _check_feed_forward("experts", each, hidden, inner, dtype)
    if shared is not None:
        _check_feed_forward("shared", shared, hidden, shared.down.width, dtype)
    dtypes = (dtype, torch.float32)
    _check_linear("router", router.weight, (count, hidden), dtypes)
    if shared_gate is not None:
        _check_linear("shared_gate", shared_gate, (1, hidden), (dtype,))
        if shared is None:
            raise ValueError("shared_gate: there is no shared expert to weight")
    for name, vector in (("bias", router.bias), ("expert_scales", router.expert_scales)):
        if vector is not None and vector.shape != (count,):
            raise ValueError(f"{name}: expected [{count}], got {list(vector.shape)}")
    if count % router.num_groups or not 1 <= router.top_groups <= router.num_groups:
        raise ValueError(
            f"num_groups: expected a divisor of {count} experts, at least {router.top_groups}, "
            f"got {router.num_groups}"
        )
    most = count // router.num_groups * router.top_groups
    if not 1 <= router.per_row <= most:
        raise ValueError(f"per_row: expected 1 to {most}, got {router.per_row}")


def _check_feed_forward(
    name: str, each: PackedFeedForward, hidden: int, inner: int, dtype: torch.dtype
) -> None:
    _check_linear(f"{name}.gate_up", each.gate_up, (inner, hidden), (dtype,), is_gated=True)
    _check_linear(f"{name}.down", each.down, (hidden, inner), (dtype,))


def _check_linear(
    name: str,
    linear: PackedLinear,
    shape: tuple[int, int],
    dtypes: tuple[torch.dtype, ...],
    *,
    is_gated: bool = False,
) -> None:
    found = linear.num_outputs, linear.width
    if found != shape or linear.dtype not in dtypes or linear.is_gated != is_gated:
        gate = "with a gate" if is_gated else "without a gate"
        raise ValueError(
            f"{name}: expected {list(shape)} {gate} in {dtypes[0]}, got {list(found)} in "
            f"{linear.dtype}, is_gated {linear.is_gated}"
        )
