import pytest
import torch

from pagoda_kernels.native import quantised_weight as module
from pagoda_kernels.native.quantised_weight import (
    LEVELS,
    Bits,
    QuantisedWeight,
    quantise,
    quantise_by_torch,
)

BITS = pytest.mark.parametrize("bits", [8, 4])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def error(coded: QuantisedWeight, weight: torch.Tensor) -> float:
    wide = weight.double()
    return float((coded.dequantised(torch.float64) - wide).norm() / wide.norm())


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("shape", [(1, 1), (3, 32), (65, 130), (40, 1500)], ids=str)
@BITS
@DTYPES
def test_the_native_quantiser_is_torchs(
    dtype: torch.dtype, bits: Bits, shape: tuple[int, int]
) -> None:
    weight = torch.randn(shape).to(dtype)
    found, expected = quantise(weight, bits), quantise_by_torch(weight, bits)
    assert found.codes.shape == shape
    assert found.scales.shape == (shape[0], -(-shape[1] // 32))
    # Two scales may be as good as each other but for the order in which errors are added.
    is_same = found.scales == expected.scales
    assert is_same.float().mean() > 0.999
    of_same = is_same.repeat_interleave(32, 1)[:, : shape[1]]
    assert torch.equal(found.codes[of_same], expected.codes[of_same])
    assert abs(error(found, weight) - error(expected, weight)) < 1e-6


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("bits", "least", "most"), [(8, 0.004, 0.006), (4, 0.07, 0.08)])
def test_error_of_normal_weights(bits: Bits, least: float, most: float) -> None:
    weight = torch.randn(200, 512)
    assert least < error(quantise(weight, bits), weight) < most


@pytest.mark.usefixtures("native")
@BITS
@pytest.mark.parametrize("by_torch", [True, False], ids=["torch", "native"])
def test_weights_on_levels_stay_what_they_are(bits: Bits, by_torch: bool) -> None:
    levels = torch.tensor(LEVELS if bits == 4 else range(-127, 128))
    picked = levels[torch.randint(len(levels), (20, 96))].float()
    picked[:, ::32] = LEVELS[0]  # the largest of each group
    weight = picked * 2.0 ** torch.randint(-9, 3, (20, 1))
    coded = (quantise_by_torch if by_torch else quantise)(weight, bits)
    assert torch.equal(coded.dequantised(torch.float32), weight)


@pytest.mark.usefixtures("native")
@BITS
@pytest.mark.parametrize("by_torch", [True, False], ids=["torch", "native"])
def test_groups_of_zeros_and_of_what_is_not_finite(bits: Bits, by_torch: bool) -> None:
    weight = torch.randn(4, 96)
    weight[0, :32] = 0.0
    weight[1, 40], weight[2, 95] = torch.nan, torch.inf
    weight[3, 32:64] = 1e-42  # too small for a scale of bf16
    dense = (quantise_by_torch if by_torch else quantise)(weight, bits).dequantised(torch.float32)
    assert (dense[0, :32] == 0).all()
    assert (dense[3, 32:64] == 0).all()
    assert dense[1, 32:64].isnan().all()
    assert dense[2, 64:].isnan().all()
    assert dense.isfinite().sum() == 4 * 96 - 64


def test_torch_takes_large_weights_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 70)
    at_once = quantise_by_torch(weight, 4)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 300)
    in_parts = quantise_by_torch(weight, 4)
    assert torch.equal(in_parts.codes, at_once.codes)
    assert torch.equal(in_parts.scales, at_once.scales)
    assert torch.equal(in_parts.dequantised(torch.float32), at_once.dequantised(torch.float32))


def test_levels_are_exact_in_bf16_and_ascend_from_the_farthest() -> None:
    assert module.levels_table().tolist() == list(LEVELS)
    assert sorted(LEVELS) == list(LEVELS)
    assert max(LEVELS, key=abs) == LEVELS[0]
