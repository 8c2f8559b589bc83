import pytest
import torch
import torch.nn.functional as F

from pagoda_engine.models.linear import GatedLinear, Linear
from pagoda_kernels import silu_mul
from pagoda_kernels.native import packed_linear


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 8, 9, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_product_is_right_for_any_number_of_rows(
    dtype: torch.dtype, num_rows: int, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(72, 40, generator=generator).to(dtype)
    bias = torch.randn(72, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(num_rows, 40, generator=generator).to(dtype)
    expected = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    tolerance = 1e-4 if dtype is torch.float32 else 0.05
    found = Linear(weight, bias)(x)
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_products_of_torch(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    weight, x = torch.randn(16, 8).to(dtype), torch.randn(3, 8).to(dtype)
    assert torch.equal(Linear(weight)(x), F.linear(x, weight))
    assert torch.equal(GatedLinear(weight)(x), silu_mul(F.linear(x, weight)))


def test_what_the_native_operators_have_not_is_not_packed() -> None:
    assert not packed_linear.can_pack(torch.zeros(4, 4, dtype=torch.float16))
    assert not packed_linear.can_pack(torch.zeros(4, 3, dtype=torch.bfloat16))
    assert not packed_linear.can_pack(torch.zeros(4, 4, device="meta"))
