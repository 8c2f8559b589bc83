"""The feed-forward part of a layer: the same for every token, or a few experts for each.

Knows weights. Knows nothing of attention, residuals or norms.
"""

from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.models.description import ExpertsDescription
from pagoda_engine.models.linear import ActivatedLinear, GatedLinear, Linear, holdable
from pagoda_kernels import fused_moe, route_topk
from pagoda_kernels.native import packed_linear
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
    """

    weight: Linear
    bias: torch.Tensor | None
    description: ExpertsDescription

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights ``[T, k]`` fp32 and experts ``[T, k]`` int32 of ``[T, hidden]``."""
        shape = self.description
        return route_topk(
            self.weight(hidden.float() if shape.is_router_float32 else hidden),
            shape.num_experts_per_tok,
            scoring=shape.scoring,
            renormalise=shape.norm_topk_prob,
            bias=self.bias,
            num_groups=shape.num_groups,
            top_groups=shape.top_groups,
            scale=shape.routed_scale,
        )


class Experts:
    """A weighted sum of the experts that the router chooses for a token.

    Where projections are packed (see `Linear`) so are the experts, one by one: twice as fast as
    `fused_moe` on the same CPU.
    """

    __slots__ = (
        "_down",
        "_gate_up",
        "_packed",
        "_router",
        "_shared",
    )

    def __init__(
        self,
        router: Router,
        gate_up: torch.Tensor | CodedWeight,
        down: torch.Tensor | CodedWeight,
        *,
        shared: SharedExpert | None = None,
        bits: Bits | None = None,
    ) -> None:
        """Take over the weights.

        Args:
            router: of E experts.
            gate_up: ``[E * 2 * intermediate, hidden]``, of each expert rows of gate, then up; as
                `Linear`'s, contiguous.
            down: ``[E * hidden, intermediate]``, as `gate_up`.
            shared: added for every token; None: there is none.
            bits: quantise `gate_up` and `down`; None: as they are.
        """
        self._router = router
        self._shared = shared
        self._packed: tuple[DenseFeedForward, ...] = ()
        self._gate_up = self._down = torch.empty(0)
        num_experts = router.description.num_experts
        if (
            isinstance(gate_up, CodedWeight)
            and isinstance(down, CodedWeight)
            and all(packed_linear.can_pack(_example(weight)) for weight in (gate_up, down))
        ):
            coded = zip(gate_up.split(num_experts), down.split(num_experts), strict=True)
            self._packed = tuple(DenseFeedForward(GatedLinear(g), Linear(d)) for g, d in coded)
            return
        wide_up, up_bits = holdable(_by_expert(gate_up, num_experts), bits)
        wide_down, down_bits = holdable(_by_expert(down, num_experts), bits)
        if packed_linear.can_pack(wide_up[0]) and packed_linear.can_pack(wide_down[0]):
            self._packed = tuple(
                DenseFeedForward(GatedLinear(g, bits=up_bits), Linear(d, bits=down_bits))
                for g, d in zip(wide_up, wide_down, strict=True)
            )
        else:
            self._gate_up, self._down = wide_up, wide_down

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``[T, hidden]`` for ``[T, hidden]``."""
        weights, experts = self._router(hidden)
        if self._packed:
            routed = self._one_by_one(hidden, weights, experts.flatten())
        else:
            routed = fused_moe(hidden, self._gate_up, self._down, weights, experts)
        return routed if self._shared is None else routed + self._shared(hidden)

    def _one_by_one(
        self, hidden: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """As `fused_moe`, on CPU; `experts` ``[T * k]``."""
        order = experts.argsort(stable=True)
        tokens = order // weights.shape[1]
        counts = torch.bincount(experts, minlength=len(self._packed)).tolist()
        rows = hidden.index_select(0, tokens).split_with_sizes(counts)
        parts = [expert(part) for expert, part in zip(self._packed, rows, strict=True) if len(part)]
        scaled = torch.cat(parts).float() * weights.flatten()[order][:, None]
        # A token's parts are added in the order of its experts, whatever else is in the batch.
        summed = torch.zeros(hidden.shape, dtype=torch.float32).index_add_(0, tokens, scaled)
        return summed.to(hidden.dtype)


def _by_expert(weight: torch.Tensor | CodedWeight, num_experts: int) -> torch.Tensor:
    """Return ``[E, N, K]``, dense."""
    dense = weight.dequantised() if isinstance(weight, CodedWeight) else weight
    return dense.view(num_experts, -1, dense.shape[-1])


def _example(weight: CodedWeight) -> torch.Tensor:
    """Return one row of what it stands for, with nothing in it."""
    return torch.empty(1, weight.shape[1], dtype=weight.dtype, device=weight.codes.device)
