"""Experts as one native call against the reference, and against themselves."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pagoda_kernels import ClampedSwiglu
from pagoda_kernels.gate import reference as gate_reference
from pagoda_kernels.moe import reference
from pagoda_kernels.native import packed_experts
from pagoda_kernels.native.memory import room_of
from pagoda_kernels.native.packed_experts import PackedExperts, PackedFeedForward, PackedRouter
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.quantised_weight import Bits, quantise

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@dataclass(frozen=True)
class Shape:
    """Experts, and how they are chosen."""

    num_experts: int = 6
    per_row: int = 2
    hidden: int = 70
    inner: int = 34
    is_sigmoid: bool = False
    renormalise: bool = True
    has_choice_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    is_router_float32: bool = False
    gate: ClampedSwiglu | None = None
    has_biases: bool = False
    shared_inner: int = 0
    has_shared_gate: bool = False
    bits: Bits | None = None


SHAPES = {
    "mixtral": Shape(num_experts=8, hidden=128, inner=96),
    "qwen2": Shape(renormalise=False, shared_inner=50, has_shared_gate=True),
    "one-expert": Shape(num_experts=1, per_row=1),
    "all-experts": Shape(num_experts=3, per_row=3, scale=0.3),
    "130-experts": Shape(num_experts=130, per_row=7, hidden=30),
    "deepseek-v2": Shape(
        num_experts=12, num_groups=4, top_groups=2, per_row=5, renormalise=False, scale=1.5,
        shared_inner=66, is_router_float32=True,
    ),
    "deepseek-v3": Shape(
        num_experts=40, num_groups=8, top_groups=3, per_row=6, is_sigmoid=True, scale=2.5,
        has_choice_bias=True, shared_inner=34, is_router_float32=True,
    ),
    "gpt-oss": Shape(gate=ClampedSwiglu(limit=0.7, alpha=1.702), has_biases=True, per_row=4),
    "int8": Shape(bits=8, shared_inner=40),
    "int4": Shape(bits=4, gate=ClampedSwiglu(limit=0.7, alpha=1.702)),
}  # fmt: skip


class Mixture:
    """Random weights, plain (what quantised ones stand for) and packed."""

    def __init__(self, shape: Shape, dtype: torch.dtype, router_scale: float = 1.0) -> None:
        self.shape, self.dtype = shape, dtype
        count, hidden, inner = shape.num_experts, shape.hidden, shape.inner
        self.router = self.matrix(count, hidden).to(self.router_dtype) * router_scale
        self.bias = torch.rand(count) if shape.has_choice_bias else None
        self.gate_up = [self.matrix(2 * inner, hidden) for _ in range(count)]
        self.down = [self.matrix(hidden, inner) for _ in range(count)]
        self.biases = [
            [torch.randn(size).to(dtype) if shape.has_biases else None for _ in range(count)]
            for size in (2 * inner, hidden)
        ]
        shared = None
        if shape.shared_inner:
            self.shared = [
                self.matrix(2 * shape.shared_inner, hidden), self.matrix(hidden, shape.shared_inner)
            ]  # fmt: skip
            shared = self.feed_forward(*self.shared)
        self.shared_gate = self.matrix(1, hidden) if shape.has_shared_gate else None
        self.packed = PackedExperts(
            PackedRouter(
                PackedLinear(self.router),
                per_row=shape.per_row,
                is_sigmoid=shape.is_sigmoid,
                renormalise=shape.renormalise,
                bias=self.bias,
                num_groups=shape.num_groups,
                top_groups=shape.top_groups,
                scale=shape.scale,
            ),
            [
                self.feed_forward(*each)
                for each in zip(self.gate_up, self.down, *self.biases, strict=True)
            ],
            shared=shared,
            shared_gate=None if self.shared_gate is None else PackedLinear(self.shared_gate),
        )

    @property
    def router_dtype(self) -> torch.dtype:
        return torch.float32 if self.shape.is_router_float32 else self.dtype

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) / columns**0.5).to(self.dtype)

    def feed_forward(
        self,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        up_bias: torch.Tensor | None = None,
        down_bias: torch.Tensor | None = None,
    ) -> PackedFeedForward:
        bits, gate = self.shape.bits, self.shape.gate or "silu"
        return PackedFeedForward(
            PackedLinear(gate_up, up_bias, is_gated=True, gate=gate, bits=bits),
            PackedLinear(down, down_bias, bits=bits),
        )

    def held(self, weight: torch.Tensor) -> torch.Tensor:
        """What is multiplied with: what codes stand for."""
        bits = self.shape.bits
        return weight if bits is None else quantise(weight, bits).dequantised(weight.dtype)

    def rows(self, count: int) -> torch.Tensor:
        return torch.randn(count, self.shape.hidden).to(self.dtype)

    def by_reference(self, x: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        weights, chosen = reference.route_topk(
            F.linear(x.to(self.router_dtype), self.router),
            shape.per_row,
            scoring="sigmoid" if shape.is_sigmoid else "softmax",
            renormalise=shape.renormalise,
            bias=self.bias,
            num_groups=shape.num_groups,
            top_groups=shape.top_groups,
            scale=shape.scale,
        )
        biases = [torch.stack(each) if shape.has_biases else None for each in self.biases]
        routed = reference.fused_moe(
            x,
            torch.stack([self.held(weight) for weight in self.gate_up]),
            torch.stack([self.held(weight) for weight in self.down]),
            weights,
            chosen,
            gate_up_bias=biases[0],
            down_bias=biases[1],
            gate=shape.gate,
        )
        if not shape.shared_inner:
            return routed
        up, down = map(self.held, self.shared)
        shared = F.linear(gate_reference.silu_mul(F.linear(x, up)), down)
        if self.shared_gate is not None:
            shared = torch.sigmoid(F.linear(x, self.shared_gate)) * shared
        return routed + shared


@pytest.fixture(autouse=True)
def poisoned_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the call is given to work in holds NaN."""
    monkeypatch.setattr(packed_experts, "room_of", lambda n: room_of(n).fill_(0xFF))


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", SHAPES)
@DTYPES
def test_experts_are_those_of_the_reference(name: str, dtype: torch.dtype) -> None:
    mixture = Mixture(SHAPES[name], dtype)
    for num_rows in (1, 7, 63):
        x = mixture.rows(num_rows)
        found, want = mixture.packed(x), mixture.by_reference(x)
        assert found.dtype is dtype
        error = (found.double() - want.double()).norm() / want.double().norm()
        assert error < TOLERANCES[dtype], num_rows


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", SHAPES)
@DTYPES
def test_a_row_is_the_same_to_the_bit_whatever_comes_with_it(name: str, dtype: torch.dtype) -> None:
    mixture = Mixture(SHAPES[name], dtype)
    x = mixture.rows(300)  # more than one chunk of an expert's rows
    together = mixture.packed(x)
    for rows in (range(1), range(3, 10), range(100, 300), [299, 5, 5, 140]):
        assert torch.equal(mixture.packed(x[list(rows)]), together[list(rows)])


@pytest.mark.usefixtures("native")
def test_no_rows() -> None:
    mixture = Mixture(SHAPES["qwen2"], torch.float32)
    assert mixture.packed(mixture.rows(0)).shape == (0, 70)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", ["mixtral", "deepseek-v3"])
def test_equal_scores_go_to_the_lower_expert(name: str) -> None:
    shape = replace(SHAPES[name], has_choice_bias=False)
    mixture = Mixture(shape, torch.float32, router_scale=0.0)
    x = mixture.rows(5)
    torch.testing.assert_close(mixture.packed(x), mixture.by_reference(x))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", ["mixtral", "deepseek-v2", "deepseek-v3"])
def test_rows_that_are_not_finite_leave_the_others_alone(name: str) -> None:
    mixture = Mixture(SHAPES[name], torch.float32)
    x = mixture.rows(4)
    want = mixture.packed(x)
    x[1], x[2, 3] = float("nan"), float("inf")
    found = mixture.packed(x)
    assert torch.equal(found[[0, 3]], want[[0, 3]])
    assert found[1].isnan().all()


@pytest.mark.usefixtures("native")
def test_experts_of_no_model_are_refused() -> None:
    mixture = Mixture(Shape(), torch.float32)
    expert = mixture.feed_forward(mixture.gate_up[0], mixture.down[0])
    other = mixture.feed_forward(mixture.matrix(20, 70), mixture.matrix(70, 10))
    weight = PackedLinear(mixture.matrix(2, 70))

    def refused(message: str, experts: Any = (expert, expert), **fields: Any) -> None:
        options = {"weight": weight, "per_row": 1, "is_sigmoid": False, "renormalise": False}
        parts = {name: fields.pop(name) for name in ("shared", "shared_gate") if name in fields}
        with pytest.raises(ValueError, match=message):
            PackedExperts(PackedRouter(**{**options, **fields}), list(experts), **parts)

    refused(r"experts\.gate_up: expected \[34, 70\] with a gate", (expert, other))
    refused(r"router: expected \[3, 70\]", (expert,) * 3)
    refused("per_row: expected 1 to 2, got 3", per_row=3)
    refused("num_groups: expected a divisor of 2 experts, at least 1, got 3", num_groups=3)
    refused(r"bias: expected \[2\], got \[3\]", bias=torch.zeros(3))
    refused(r"expert_scales: expected \[2\], got \[3\]", expert_scales=torch.zeros(3))
    refused(r"shared\.down: expected \[70, 66\]", shared=PackedFeedForward(
        PackedLinear(mixture.matrix(132, 70), is_gated=True),
        PackedLinear(mixture.matrix(40, 66)),
    ))  # fmt: skip
    refused("shared_gate: there is no shared expert", shared_gate=PackedLinear(torch.ones(1, 70)))
    with pytest.raises(ValueError, match=r"x: expected torch\.float32 \[M, 70\], got"):
        mixture.packed(torch.ones(2, 71))
