"""Adapters of packed projections: against the readable twin, and row by row to the bit."""

import pytest
import torch
import torch.nn.functional as F

from pagoda_kernels.native.library import NativeLibrary
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.packed_lora import PackedLora
from pagoda_kernels.native.quantised_weight import Bits

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
WIDTH, RANKS = 70, (3, 16, 20)  # one a slot
PROJECTIONS = pytest.mark.parametrize(
    ("parts", "is_gated"),  # rows of the weight, part by part
    [((96,), False), ((40, 17, 9), False), ((50, 50), True), ((100,), True)],
    ids=["one", "three", "gated", "gated-one"],
)


class Case:
    """A projection with an adapter in each slot, and what they are made of."""

    def __init__(
        self, parts: tuple[int, ...], is_gated: bool, dtype: torch.dtype, bits: Bits | None = None
    ) -> None:
        self.parts, self.is_gated, self.dtype = parts, is_gated, dtype
        self.weight = torch.randn(sum(parts), WIDTH).to(dtype)
        self.linear = PackedLinear(self.weight, is_gated=is_gated, bits=bits)
        self.lora = PackedLora(
            num_slots=len(RANKS) + 1,
            max_rank=20,
            part_rows=parts,
            width=WIDTH,
            is_gated=is_gated,
            dtype=dtype,
        )
        self.a = [torch.randn(len(parts), rank, WIDTH).to(dtype) for rank in RANKS]
        self.b = [(torch.randn(sum(parts), rank) / rank).to(dtype) for rank in RANKS]
        for slot, (a, b) in enumerate(zip(self.a, self.b, strict=True)):
            self.lora.write(slot, a, b, 0.5 + slot)
        self.linear.take_adapters(self.lora)

    def expected(self, x: torch.Tensor, adapters: list[int]) -> torch.Tensor:
        """Return the results in float64, with weights that have the adapters in them."""
        rows = []
        for row, slot in zip(x.double(), adapters, strict=True):
            weight = self.weight.double()
            if slot in range(len(RANKS)):
                b = self.b[slot].double().split(self.parts)
                pairs = zip(b, self.a[slot].double(), strict=True)
                added = torch.cat([part @ a for part, a in pairs])
                weight = weight + (0.5 + slot) * added
            y = weight @ row
            if self.is_gated:
                gate, up = y.chunk(2)
                y = F.silu(gate) * up
            rows.append(y)
        return torch.stack(rows)


@pytest.mark.usefixtures("native", "num_threads")
@PROJECTIONS
@DTYPES
def test_rows_of_several_adapters(
    parts: tuple[int, ...], is_gated: bool, dtype: torch.dtype
) -> None:
    case = Case(parts, is_gated, dtype)
    adapters = [0, 1, 2, -1, 3, 1, 1, 1, 1, 2, 2, 0, -1]
    x = torch.randn(len(adapters), WIDTH).to(dtype)
    found = case.linear(x, torch.tensor(adapters, dtype=torch.int32)).double()
    expected = case.expected(x, adapters)
    limit = 5e-6 if dtype is torch.float32 else 1e-2
    assert float((found - expected).norm() / expected.norm()) < limit


@pytest.mark.usefixtures("native", "num_threads")
@PROJECTIONS
@DTYPES
def test_a_row_is_the_same_to_the_bit_whatever_its_batch(
    parts: tuple[int, ...], is_gated: bool, dtype: torch.dtype
) -> None:
    case = Case(parts, is_gated, dtype)
    adapters = torch.tensor([0, 0, 0, 0, 1, 2, 2, -1, 3, 1, 2] * 14, dtype=torch.int32)
    x = torch.randn(len(adapters), WIDTH).to(dtype)
    together = case.linear(x, adapters)
    for i in range(0, len(x), 9):
        assert torch.equal(case.linear(x[i : i + 1], adapters[i : i + 1])[0], together[i])
    plain = PackedLinear(case.weight, is_gated=is_gated)(x)
    has_none = adapters % 4 == 3  # -1, and the slot that nothing was put into
    assert torch.equal(together[has_none], plain[has_none])
    assert not torch.equal(together[~has_none], plain[~has_none])


@pytest.mark.usefixtures("native")
def test_more_rows_than_are_widened_at_a_time() -> None:
    """As `WIDE_NUMBERS` has it, where products take floats of bf16."""
    case = Case((40, 17, 9), False, torch.bfloat16)
    boundary = (8 << 20) // WIDTH
    x = torch.randn(boundary + 40, WIDTH).to(torch.bfloat16)
    adapters = (torch.arange(len(x)) % 5 - 1).to(torch.int32)
    found = case.linear(x, adapters)
    for first in (0, boundary - 7, boundary, boundary + 27):
        rows = slice(first, first + 13)
        assert torch.equal(found[rows], case.linear(x[rows], adapters[rows].contiguous()))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("bits", [8, 4])
def test_on_quantised_weights(bits: Bits) -> None:
    case = Case((40, 24), False, torch.float32, bits)
    x = torch.randn(5, WIDTH)
    base = case.linear(x)
    adapters = torch.full((5,), 1, dtype=torch.int32)
    added = case.expected(x, [1] * 5) - case.expected(x, [-1] * 5)
    assert torch.allclose(case.linear(x, adapters).double(), base.double() + added, atol=1e-4)


@pytest.mark.usefixtures("native")
def test_a_slot_that_was_cleared_or_filled_again() -> None:
    case = Case((40, 24), False, torch.float32)
    x, adapters = torch.randn(3, WIDTH), torch.full((3,), 2, dtype=torch.int32)
    case.lora.clear(2)
    assert torch.equal(case.linear(x, adapters), case.linear(x))
    case.lora.write(2, case.a[0], case.b[0], 0.5)  # of a lower rank than the one before
    assert torch.equal(case.linear(x, adapters), case.linear(x, torch.zeros(3, dtype=torch.int32)))


def test_what_is_no_slot_is_refused(native: NativeLibrary) -> None:
    assert native
    case = Case((64,), False, torch.float32)
    x = torch.randn(2, WIDTH)
    for wrong in (
        torch.tensor([0, 4], dtype=torch.int32),
        torch.tensor([0, 1]),
        torch.tensor([0], dtype=torch.int32),
    ):
        with pytest.raises(ValueError, match="adapters"):
            case.linear(x, wrong)
