import psutil
import pytest
import torch
import torch.nn.functional as F

from pagoda_engine.models import linear as module
from pagoda_engine.models.linear import Linear, rounded_rows


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("num_rows", [1, 2, 8, 9, 130])
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


def test_product_without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_pack", lambda dtype: False)
    weight, x = torch.randn(16, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    assert torch.equal(Linear(weight)(x), F.linear(x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(72, 40), (512, 256), (256, 768)], ids=str)
def test_packed_product_of_a_row_hardly_depends_on_the_others(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    if not module.can_pack(dtype):
        pytest.skip("nothing is packed on this machine")
    generator = torch.Generator().manual_seed(0)
    linear = Linear(torch.randn(shape, generator=generator).to(dtype))
    x = torch.randn(40, shape[1], generator=generator).to(dtype)
    alone = torch.cat([linear(row) for row in x.split(1)])
    for num_rows in (2, 3, 8, 17, 40):
        together = linear(x[:num_rows])
        if dtype is torch.float32:  # to the bit, up to K = 768
            assert torch.equal(together, alone[:num_rows])
        else:  # one rounding of bf16: oneDNN takes AMX for many rows where there is any
            torch.testing.assert_close(together, alone[:num_rows], rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("num_rows", "rounded"),
    [(0, 0), (1, 1), (16, 16), (17, 18), (33, 36), (256, 256), (257, 288), (512, 512)],
)
def test_rows_are_rounded_up(num_rows: int, rounded: int) -> None:
    assert rounded_rows(num_rows) == rounded


def test_rows_are_rounded_to_few_numbers_at_most_an_eighth_more() -> None:
    assert len({rounded_rows(num_rows) for num_rows in range(1, 513)}) == 16 + 5 * 8
    for num_rows in range(1, 10_000):
        assert num_rows <= rounded_rows(num_rows) <= num_rows * 9 / 8


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_does_not_grow_with_every_number_of_rows(dtype: torch.dtype) -> None:
    if not module.can_pack(dtype):
        pytest.skip("nothing is packed on this machine")
    process = psutil.Process()
    linear = Linear(torch.randn(88, 56).to(dtype))  # a shape of no other test
    before = process.memory_info().rss
    for num_rows in range(1, 513):
        linear(torch.randn(num_rows, 56).to(dtype))
    grown = process.memory_info().rss - before
    assert grown < 100 * 2**20, f"{grown / 2**20:.0f} MiB"  # half a MiB for each number: 256 MiB


@pytest.mark.slow
def test_memory_does_not_grow_after_the_warm_up() -> None:
    if not module.can_pack(torch.float32):
        pytest.skip("nothing is packed on this machine")
    process = psutil.Process()
    linear = Linear(torch.randn(104, 72))  # a shape of no other test
    linear.warm_up(300)
    before = process.memory_info().rss
    for num_rows in range(1, 301):
        linear(torch.randn(num_rows, 72))
    grown = process.memory_info().rss - before
    assert grown < 4 * 2**20, f"{grown / 2**20:.0f} MiB"


def test_float16_is_not_packed() -> None:
    assert not module.can_pack(torch.float16)


def test_can_pack_is_false_where_the_operator_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            raise AttributeError(name)

    monkeypatch.setattr(torch.ops, "mkldnn", Broken())
    module.can_pack.cache_clear()
    assert not module.can_pack(torch.float32)
    module.can_pack.cache_clear()
