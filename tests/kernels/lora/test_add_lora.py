import pytest
import torch

from pagoda_kernels.lora import reference
from pagoda_kernels.lora.add_lora import add_lora
from pagoda_kernels.lora.triton import add_lora as triton_lora

RANKS = (8, 24, 17, 0)


def run(path, *arguments, num_splits=None):
    if path == "cpu":
        add_lora(*arguments)
    else:
        triton_lora(*arguments, num_splits=num_splits)


def make_case(num_tokens, num_k, num_n, *, dtype, device, ranks=RANKS):
    max_rank = max(ranks)
    a = torch.randn(len(ranks), max_rank, num_k, device=device) * num_k**-0.5
    b = torch.randn(len(ranks), num_n, max_rank, device=device)
    for adapter, rank in enumerate(ranks):  # never to be read
        a[adapter, rank:] = float("nan")
        b[adapter, :, rank:] = float("nan")
    return (
        torch.randn(num_tokens, num_n, device=device).to(dtype),
        torch.randn(num_tokens, num_k, device=device).to(dtype),
        a.to(dtype),
        b.to(dtype),
        torch.randint(-1, len(ranks), (num_tokens,), dtype=torch.int32, device=device),
        torch.tensor(ranks, dtype=torch.int32, device=device),
        torch.rand(len(ranks), device=device) + 0.5,
    )


@pytest.mark.parametrize(
    ("num_tokens", "num_k", "num_n"), [(1, 63, 127), (63, 200, 150), (127, 127, 63)]
)
def test_matches_reference(path, device, dtype, num_tokens, num_k, num_n, assert_close):
    case = make_case(num_tokens, num_k, num_n, dtype=dtype, device=device)
    want = reference.add_lora(*case)
    run(path, *case)
    assert_close(case[0], want)


@pytest.mark.parametrize("path", ["triton"])
@pytest.mark.parametrize("num_splits", [2, 3])
def test_splits_add_up(path, device, dtype, num_splits, assert_close):
    case = make_case(9, 600, 40, dtype=dtype, device=device)
    want = reference.add_lora(*case)
    run(path, *case, num_splits=num_splits)
    assert_close(case[0], want)


def test_ranks_beyond_one_tile(path, device, dtype, assert_close):
    case = make_case(20, 64, 48, dtype=dtype, device=device, ranks=(128, 16, 70))
    want = reference.add_lora(*case)
    run(path, *case)
    assert_close(case[0], want)


def test_slice_of_a_joined_projection(path, device, dtype, assert_close):
    out, *rest = make_case(7, 64, 40, dtype=dtype, device=device)
    joined = torch.full((7, 100), float("nan"), dtype=dtype, device=device)
    joined[:, 30:70] = out
    want = reference.add_lora(out, *rest)
    run(path, joined[:, 30:70], *rest)
    assert_close(joined[:, 30:70], want)
    assert bool(joined[:, :30].isnan().all())
    assert bool(joined[:, 70:].isnan().all())


def test_tokens_without_adapter_stay_as_they_are(path, device):
    out, x, a, b, adapters, *rest = make_case(7, 64, 40, dtype=torch.float32, device=device)
    adapters.fill_(-1)
    before = out.clone()
    run(path, out, x, a, b, adapters, *rest)
    assert torch.equal(out, before)


def test_takes_no_tokens(path, device):
    run(path, *make_case(0, 64, 40, dtype=torch.float32, device=device))


def test_says_what_does_not_fit():
    out, x, a, b, *rest = make_case(3, 64, 40, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"b: expected shape \[4, 40, 24\], got \[4, 24, 40\]"):
        add_lora(out, x, a, b.transpose(1, 2), *rest)
    with pytest.raises(ValueError, match=r"a: expected torch.float32 on cpu as x"):
        add_lora(out, x, a.half(), b, *rest)
    with pytest.raises(ValueError, match=r"scales: expected fp32 on cpu, got torch.float64"):
        add_lora(out, x, a, b, *rest[:2], rest[2].double())
