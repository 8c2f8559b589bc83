"""A bf16 weight in twelve bits a number: the same numbers, so the same products to the bit."""

import pytest
import torch

from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import NativeLibrary
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.twelve_bits import MAX_EXCEPTIONS

SHAPES = pytest.mark.parametrize(
    "shape", [(2, 2), (64, 64), (130, 34), (64, 194), (200, 4096)], ids=str
)


def test_bf16_has_them(native: NativeLibrary) -> None:
    weight = torch.randn(64, 64)
    assert PackedLinear(weight.to(torch.bfloat16)).structure.bits == 12
    assert PackedLinear(weight).structure.bits == 0


def dense_linear(monkeypatch: pytest.MonkeyPatch, *args: object, **kwargs: object) -> PackedLinear:
    with monkeypatch.context() as patched:
        patched.setattr(packed_linear, "find_exceptions", lambda *_: None)
        return PackedLinear(*args, **kwargs)  # type: ignore[arg-type]


def weight_with_exceptions(shape: tuple[int, int], *, num_exceptions: int) -> torch.Tensor:
    """Return numbers between 1 and 2, and some that are anything at all, every exponent once."""
    weight = torch.rand(shape) + 1.0
    places = torch.randperm(weight.numel())[:num_exceptions]
    exponents = torch.randperm(256)[:num_exceptions].to(torch.int32)
    bits = exponents << 7 | torch.randint(128, (num_exceptions,), dtype=torch.int32)
    signs = torch.randint(2, (num_exceptions,), dtype=torch.int32) << 15
    weight = weight.to(torch.bfloat16)
    weight.view(torch.int16).flatten()[places] = (bits | signs).to(torch.int16)
    return weight


@pytest.mark.usefixtures("native", "num_threads")
@SHAPES
@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
def test_products_are_those_of_sixteen_bits(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int],
    is_gated: bool,
) -> None:
    weight, bias = torch.randn(shape).to(torch.bfloat16), torch.randn(shape[0]).to(torch.bfloat16)
    packed = PackedLinear(weight, bias, is_gated=is_gated)
    dense = dense_linear(monkeypatch, weight, bias, is_gated=is_gated)
    assert (packed.structure.bits, dense.structure.bits) == (12, 0)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 13, 64, 129):
        x = torch.randn(num_rows, shape[1]).to(torch.bfloat16)
        assert torch.equal(packed(x), dense(x))


@pytest.mark.usefixtures("native")
def test_a_quarter_of_the_memory_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = (torch.randn(512, 1024) * 0.02).to(torch.bfloat16)
    dense = dense_linear(monkeypatch, weight)
    assert PackedLinear(weight).num_bytes < 0.76 * dense.num_bytes


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
def test_exceptions_take_their_places(monkeypatch: pytest.MonkeyPatch, is_gated: bool) -> None:
    # Infinities and NaN among them, as bits: each product is compared where it is not one.
    weight = weight_with_exceptions((200, 1024), num_exceptions=256)
    packed = PackedLinear(weight, is_gated=is_gated)
    assert packed.structure.bits == 12
    dense = dense_linear(monkeypatch, weight, is_gated=is_gated)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 13, 32):
        x = torch.randn(num_rows, 1024).to(torch.bfloat16)
        found, expected = packed(x), dense(x)
        assert torch.equal(found.isnan(), expected.isnan())
        assert not expected.isnan().all()
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.usefixtures("native", "num_threads")
def test_exceptions_at_the_ends_of_parts_and_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 96 steps are a part, or 96 columns, and 32 the last ones of one row; a step is two columns.
    weight = torch.rand(64, 1024).add(1.0).to(torch.bfloat16)
    steps = torch.tensor([0, 1, 47, 48, 95, 96, 97, 191, 192, 383, 384, 479, 480, 510, 511])
    rows = torch.tensor([0, 7, 8, 15, 16, 31, 32, 47, 48, 63])
    weight[rows[:, None], 2 * steps + torch.randint(2, (10, 15))] *= 2.0**40
    packed, dense = PackedLinear(weight), dense_linear(monkeypatch, weight)
    assert packed.structure.bits == 12
    for num_rows in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16):
        x = torch.randn(num_rows, 1024).to(torch.bfloat16)
        assert torch.equal(packed(x), dense(x))


@pytest.mark.usefixtures("native")
def test_rows_are_found_with_their_exceptions() -> None:
    weight = weight_with_exceptions((200, 1024), num_exceptions=256)
    packed = PackedLinear(weight)
    assert packed.structure.bits == 12
    found = packed.rows(torch.arange(200))
    assert torch.equal(found.view(torch.int16), weight.view(torch.int16))


@pytest.mark.usefixtures("native")
def test_every_number_may_be_zero() -> None:
    packed = PackedLinear(torch.zeros(64, 64, dtype=torch.bfloat16))
    assert packed(torch.randn(3, 64).to(torch.bfloat16)).abs().max() == 0.0


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("factor", "bits"), [(0.9, 12), (1.1, 0)])
def test_a_weight_of_many_high_bytes_keeps_sixteen_bits(factor: float, bits: int) -> None:
    # Sixteen high bytes of equal shares, and some numbers that have none of them.
    numbers = 4.0 ** torch.arange(16).repeat(64 * 1024 // 16)
    numbers[: int(factor * MAX_EXCEPTIONS * len(numbers))] = 2.0**-20
    weight = numbers[torch.randperm(len(numbers))].reshape(64, 1024).to(torch.bfloat16)
    packed = PackedLinear(weight)
    assert packed.structure.bits == bits
    assert torch.equal(packed.rows(torch.arange(64)), weight)
