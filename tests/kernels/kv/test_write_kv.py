import pytest
import torch

from pagoda_kernels import PAD_SLOT, write_kv
from pagoda_kernels.kv import reference
from pagoda_kernels.kv.triton import write_kv as triton_kv_write

OPERATOR = {"cpu": write_kv, "triton": triton_kv_write.write_kv}


def make_case(num_tokens, num_kv_heads, head_dim, block_size, dtype, device):
    num_blocks = num_tokens // block_size + 3
    k, v = torch.randn(2, num_tokens, num_kv_heads, head_dim, device=device).to(dtype)
    cache = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), float("nan"))
    slots = torch.randperm(num_blocks * block_size)[:num_tokens]
    return k, v, cache.to(device, dtype), slots.to(device)


def check(path, k, v, cache, slots):
    want = cache.clone()
    reference.write_kv(k, v, want[0], want[1], slots)
    OPERATOR[path](k, v, cache[0], cache[1], slots)
    assert torch.equal(cache.nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("num_tokens", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 64, 16), (63, 3, 80, 32), (127, 2, 96, 128)],
)
def test_matches_reference(path, device, dtype, num_tokens, num_kv_heads, head_dim, block_size):
    check(path, *make_case(num_tokens, num_kv_heads, head_dim, block_size, dtype, device))


def test_skips_padding(path, device, dtype):
    k, v, cache, slots = make_case(63, 2, 64, 16, dtype, device)
    slots[::3] = PAD_SLOT
    check(path, k, v, cache, slots)


def test_only_padding_changes_nothing(path, device):
    k, v, cache, slots = make_case(5, 2, 64, 16, torch.float32, device)
    OPERATOR[path](k, v, cache[0], cache[1], torch.full_like(slots, PAD_SLOT))
    assert cache.isnan().all()


def test_takes_k_sliced_out_of_a_projection_and_int32_slots(path, device, dtype):
    _, _, cache, slots = make_case(31, 2, 64, 16, dtype, device)
    qkv = torch.randn(31, 8 * 64, device=device).to(dtype)
    k, v = (x.unflatten(1, (2, 64)) for x in qkv[:, 256:].chunk(2, 1))
    check(path, k, v, cache, slots.int())


def test_takes_blocks_apart_in_memory(path, device, dtype):
    k, v, cache, slots = make_case(31, 2, 64, 16, dtype, device)
    apart = cache.transpose(0, 1).contiguous().transpose(0, 1)
    check(path, k, v, apart, slots)


def test_says_what_does_not_fit():
    k, v, cache, slots = make_case(4, 2, 64, 16, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"slot_mapping: expected shape \[4\], got \[3\]"):
        write_kv(k, v, cache[0], cache[1], slots[:3])
    with pytest.raises(ValueError, match=r"k_cache: expected shape \[any, any, 2, 64\]"):
        write_kv(k, v, cache[0, ..., :32], cache[1, ..., :32], slots)
    with pytest.raises(ValueError, match=r"v_cache: expected torch.float32 on cpu as k, got"):
        write_kv(k, v, cache[0], cache[1].half(), slots)
    with pytest.raises(ValueError, match="cache: expected dense tokens and blocks a multiple of"):
        write_kv(k, v, *cache.transpose(-3, -2).contiguous().transpose(-3, -2), slots)
