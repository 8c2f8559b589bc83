"""The feed-forward part of a layer: the same for every token, or a few experts for each.

Knows weights, and the norms of parts that stand side by side. Knows nothing of attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.models.description import ExpertsDescription
from pagoda_engine.models.linear import ActivatedLinear, GatedLinear, Linear, holdable
from pagoda_engine.models.norm import RmsNorm
from pagoda_kernels import fused_moe, route_topk
from pagoda_kernels.moe.expert_gate import ExpertGate
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.layer_weights import PackedBeside
from pagoda_kernels.native.packed_experts import PackedExperts, PackedFeedForward, PackedRouter
from pagoda_kernels.native.quantised_weight import Bits


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """``down(activation(gate(x)) * up(x))``, or without a gate ``down(activation(up(x)))``.

    Attributes:
        up: with the activation; ``[2 * intermediate, hidden]``, rows of gate, then up, or
            ``[intermediate, hidden]``.
        down: ``[hidden, intermediate]``.
    """

    up: GatedLinear | ActivatedLinear
    down: Linear

    def __call__(self, hidden: torch.Tensor, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[T, hidden]`` for ``[T, hidden]``; adapters as `Linear`'s."""
        return self.down(self.up(hidden, adapters), adapters)

    @property
    def packed(self) -> PackedFeedForward | None:
        """Both projections as native operators take them; None if they are not packed."""
        gate_up, down = self.up.packed, self.down.packed
        return None if gate_up is None or down is None else PackedFeedForward(gate_up, down)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert that every token goes through: ``sigmoid(gate(x)) * expert(x)``.

    Attributes:
        gate: ``[1, hidden]``; None: it counts as it is.
        expert: as any.
    """

    gate: Linear | None
    expert: DenseFeedForward

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``[T, hidden]`` for ``[T, hidden]``."""
        out = self.expert(hidden)
        return out if self.gate is None else torch.sigmoid(self.gate(hidden)) * out


@dataclass(frozen=True, slots=True)
class Router:
    """The experts of a token by the scores of its logits.

    Attributes:
        weight: ``[E, hidden]``, in fp32 where the description says so.
        bias: ``[E]`` fp32, added to the scores for the choice alone; None: there is none.
        description: how many experts, and how they are scored.
        scales: ``[E]`` fp32, factors of the weights of experts that are chosen; None: there are
            none.
    """

    weight: Linear
    bias: torch.Tensor | None
    description: ExpertsDescription
    scales: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights ``[T, k]`` fp32 and experts ``[T, k]`` int32 of ``[T, hidden]``."""
        shape = self.description
        weights, experts = route_topk(
            self.weight(hidden.float() if shape.is_router_float32 else hidden),
            shape.num_experts_per_tok,
            scoring=shape.scoring,
            renormalise=shape.norm_topk_prob,
            bias=self.bias,
            num_groups=shape.num_groups,
            top_groups=shape.top_groups,
            scale=shape.routed_scale,
        )
        return weights if self.scales is None else weights * self.scales[experts.long()], experts

    @property
    def packed(self) -> PackedRouter | None:
        """As native operators take it; None if its weight is not packed."""
        shape, weight = self.description, self.weight.packed
        if weight is None:
            return None
        return PackedRouter(
            weight,
            per_row=shape.num_experts_per_tok,
            is_sigmoid=shape.scoring == "sigmoid",
            renormalise=shape.norm_topk_prob,
            bias=self.bias,
            num_groups=shape.num_groups,
            top_groups=shape.top_groups,
            scale=shape.routed_scale,
            expert_scales=self.scales,
        )


class Experts:
    """A weighted sum of the experts that the router chooses for a token, and of the shared one.

    Attributes:
        packed: all of it as one native call, where projections are packed (see `Linear`); else
            None.
    """

    __slots__ = (
        "_down",
        "_down_bias",
        "_gate",
        "_gate_up",
        "_gate_up_bias",
        "_router",
        "_shared",
        "packed",
    )

    def __init__(
        self,
        router: Router,
        gate_up: torch.Tensor | CodedWeight,
        down: torch.Tensor | CodedWeight,
        *,
        gate_up_bias: torch.Tensor | None = None,
        down_bias: torch.Tensor | None = None,
        gate: ExpertGate | None = None,
        shared: SharedExpert | None = None,
        bits: Bits | None = None,
    ) -> None:
        """Take over the weights.

        Args:
            router: of E experts.
            gate_up: ``[E * 2 * intermediate, hidden]``, of each expert rows of gate, then up; as
                `Linear`'s, contiguous.
            down: ``[E * hidden, intermediate]``, as `gate_up`.
            gate_up_bias: ``[E, 2 * intermediate]``, contiguous; None: there is none.
            down_bias: ``[E, hidden]``, contiguous; None: there is none.
            gate: of the experts; None: SiLU.
            shared: added for every token; None: there is none.
            bits: quantise `gate_up` and `down`; None: as they are.
        """
        self._router = router
        self._shared = shared
        self.packed: PackedExperts | None = None
        self._gate_up = self._down = torch.empty(0)
        self._gate_up_bias, self._down_bias, self._gate = gate_up_bias, down_bias, gate
        num_experts = router.description.num_experts
        if not _can_pack(router, gate_up, down, shared):
            self._gate_up, _ = holdable(_by_expert(gate_up, num_experts), bits)
            self._down, _ = holdable(_by_expert(down, num_experts), bits)
            return
        parts = zip(
            _split(gate_up, num_experts),
            _biases(gate_up_bias, num_experts),
            _split(down, num_experts),
            _biases(down_bias, num_experts),
            strict=True,
        )
        self.packed = PackedExperts(
            _packed(router),
            [
                _packed(
                    DenseFeedForward(
                        GatedLinear(up, up_bias, gate or "silu", bits),
                        Linear(back, back_bias, bits),
                    )
                )
                for up, up_bias, back, back_bias in parts
            ],
            shared=None if shared is None else _packed(shared.expert),
            shared_gate=None if shared is None or shared.gate is None else shared.gate.packed,
        )

    def __call__(self, hidden: torch.Tensor, routed_by: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[T, hidden]`` for ``[T, hidden]``.

        `routed_by` is what the router reads, where it is not the same.
        """
        if self.packed is not None:
            return self.packed(hidden, routed_by)
        weights, experts = self._router(hidden if routed_by is None else routed_by)
        routed = fused_moe(
            hidden,
            self._gate_up,
            self._down,
            weights,
            experts,
            gate_up_bias=self._gate_up_bias,
            down_bias=self._down_bias,
            gate=self._gate,
        )
        return routed if self._shared is None else routed + self._shared(hidden)


@dataclass(frozen=True, slots=True)
class DenseAndExperts:
    """The sum of a dense part and of experts beside it, each with norms of its own.

    Attributes:
        dense: reads what the layer's norm returns.
        dense_out_norm: of what it adds.
        router_norm: of the residual, for the router.
        experts_in_norm: of the residual, for the experts.
        experts: without a shared one.
        experts_out_norm: of what they add.
    """

    dense: DenseFeedForward
    dense_out_norm: RmsNorm
    router_norm: RmsNorm
    experts_in_norm: RmsNorm
    experts: Experts
    experts_out_norm: RmsNorm

    @property
    def packed(self) -> PackedBeside | None:
        """All of it as native operators take it; None if it is not packed."""
        dense, experts = self.dense.packed, self.experts.packed
        if dense is None or experts is None:
            return None
        return PackedBeside(
            dense=dense,
            dense_out_norm=self.dense_out_norm.weight,
            router_norm=self.router_norm.weight,
            experts_in_norm=self.experts_in_norm.weight,
            experts=experts,
            experts_out_norm=self.experts_out_norm.weight,
        )

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor, adapters: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``[T, hidden]`` for it normed, as it is, and adapters as `Linear`'s."""
        dense = self.dense_out_norm(self.dense(hidden, adapters))
        routed = self.experts(self.experts_in_norm(residual), self.router_norm(residual))
        return dense + self.experts_out_norm(routed)


def _can_pack(
    router: Router,
    gate_up: torch.Tensor | CodedWeight,
    down: torch.Tensor | CodedWeight,
    shared: SharedExpert | None,
) -> bool:
    """Tell whether all of it is packed, or can be."""
    if router.packed is None or not all(map(packed_linear.can_pack, map(_row, (gate_up, down)))):
        return False
    if shared is None:
        return True
    has_gate = shared.gate is None or shared.gate.packed is not None
    return has_gate and shared.expert.packed is not None


@overload
def _packed(part: Router) -> PackedRouter: ...
@overload
def _packed(part: DenseFeedForward) -> PackedFeedForward: ...
def _packed(part: Router | DenseFeedForward) -> PackedRouter | PackedFeedForward:
    packed = part.packed
    assert packed is not None, "`_can_pack` was asked"
    return packed


def _split(weight: torch.Tensor | CodedWeight, count: int) -> Sequence[torch.Tensor | CodedWeight]:
    """Return the rows of each expert."""
    if isinstance(weight, CodedWeight):
        return weight.split(count)
    return weight.view(count, -1, weight.shape[-1]).unbind()


def _biases(bias: torch.Tensor | None, count: int) -> Sequence[torch.Tensor | None]:
    return [None] * count if bias is None else bias.unbind()


def _by_expert(weight: torch.Tensor | CodedWeight, num_experts: int) -> torch.Tensor:
    """Return ``[E, N, K]``, dense."""
    dense = weight.dequantised() if isinstance(weight, CodedWeight) else weight
    return dense.view(num_experts, -1, dense.shape[-1])


def _row(weight: torch.Tensor | CodedWeight) -> torch.Tensor:
    """Return one row: of codes, of what they stand for, with nothing in it."""
    if isinstance(weight, torch.Tensor):
        return weight.view(-1, weight.shape[-1])[:1]
    return torch.empty(1, weight.shape[1], dtype=weight.dtype, device=weight.codes.device)
