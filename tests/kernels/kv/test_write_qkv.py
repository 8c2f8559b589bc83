"""`write_qkv`, and `write_kv` into quantised caches: both quantise alike."""

import pytest
import torch

from pagoda_kernels import PAD_SLOT, write_kv
from pagoda_kernels.kv import reference
from pagoda_kernels.kv.quantisation import dequantise, quantise
from pagoda_kernels.kv.triton import write_kv as triton_kv_write
from pagoda_kernels.kv.triton import write_qkv as triton_kv_write_fused
from pagoda_kernels.kv.write_qkv import write_qkv
from pagoda_kernels.triton import one_byte_tiles

OPERATOR = {"cpu": write_qkv, "triton": triton_kv_write_fused.write_qkv}
WRITE_KV = {"cpu": write_kv, "triton": triton_kv_write.write_kv}
GPU_OR_CPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
QUANTISED = pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.int8])


def make_case(
    path, device, dtype, num_tokens=15, heads=(6, 2), head_dim=64, rot_dim=64, block_size=16
):
    """Arguments of `write_qkv`, cache of NaN; the last number of heads is that of KV heads."""
    num_heads, num_kv_heads = heads
    num_blocks = num_tokens // block_size + 3
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim + 16).to(device, dtype)
    angles = torch.rand(300, rot_dim // 2) * 6.3
    cache = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), float("nan"))
    arguments = {
        "qkv": qkv[:, :-16],
        "positions": torch.randint(0, 300, (num_tokens,)).to(device),
        "cos_sin": torch.cat([angles.cos(), angles.sin()], -1).to(device) if rot_dim else None,
        "slot_mapping": torch.randperm(num_blocks * block_size)[:num_tokens].to(device),
        "num_heads": num_heads,
        "q_norm": torch.randn(head_dim).to(device, dtype),
        "k_norm": torch.randn(head_dim).to(device, dtype),
        "eps": 1e-6,
        "k_scale": None,
        "v_scale": None,
    }
    return arguments, cache.to(device, dtype)


def check(path, arguments, cache, assert_close):
    before = arguments["qkv"].clone()
    want_cache = cache.clone()
    want = reference.write_qkv(**arguments, k_cache=want_cache[0], v_cache=want_cache[1])
    got = OPERATOR[path](**arguments, k_cache=cache[0], v_cache=cache[1])
    assert got.stride(-1) == 1
    assert_close(got, want)
    assert torch.equal(arguments["qkv"], before)
    assert torch.equal(cache.isnan(), want_cache.isnan())
    assert_close(cache.nan_to_num(), want_cache.nan_to_num())
    assert torch.equal(cache[1].nan_to_num(), want_cache[1].nan_to_num())


@pytest.mark.parametrize(
    ("num_tokens", "heads", "head_dim", "rot_dim", "block_size"),
    [
        (1, (32, 8), 128, 128, 16),
        (31, (3, 1), 80, 80, 64),
        (33, (1, 1), 96, 36, 128),
        (5, (2, 1), 256, 64, 32),
    ],
)
def test_matches_reference(
    path, device, dtype, num_tokens, heads, head_dim, rot_dim, block_size, assert_close
):
    case = make_case(path, device, dtype, num_tokens, heads, head_dim, rot_dim, block_size)
    check(path, *case, assert_close)


def test_without_norms(path, device, dtype, assert_close):
    arguments, cache = make_case(path, device, dtype)
    arguments |= {"q_norm": None, "k_norm": None}
    check(path, arguments, cache, assert_close)


def test_without_rotation(path, device, dtype, assert_close):
    check(path, *make_case(path, device, dtype, head_dim=80, rot_dim=0), assert_close)


def test_skips_padding_but_returns_its_q(path, device, dtype, assert_close):
    arguments, cache = make_case(path, device, dtype)
    arguments["slot_mapping"][::3] = PAD_SLOT
    check(path, arguments, cache, assert_close)


def test_takes_int32_and_blocks_apart_in_memory(path, device, dtype, assert_close):
    arguments, cache = make_case(path, device, dtype)
    arguments["slot_mapping"] = arguments["slot_mapping"].int()
    arguments["positions"] = arguments["positions"].int()
    apart = cache.transpose(0, 1).contiguous().transpose(0, 1)
    check(path, arguments, apart, assert_close)


def test_no_tokens_write_nothing(path, device):
    arguments, cache = make_case(path, device, torch.float32, num_tokens=0)
    got = OPERATOR[path](**arguments, k_cache=cache[0], v_cache=cache[1])
    assert got.shape == (0, 6, 64)
    assert cache.isnan().all()


@QUANTISED
@pytest.mark.parametrize("num_scales", [1, 2])
def test_quantises(path, device, dtype, kv_dtype, num_scales, assert_close):
    arguments, cache = make_case(path, device, dtype)
    arguments["slot_mapping"][::5] = PAD_SLOT
    steps = 100 if kv_dtype == torch.int8 else 1
    scale = (0.02 + torch.rand(num_scales, device=device)) / steps
    arguments |= {"k_scale": scale, "v_scale": scale.flip(0)}
    caches = torch.zeros_like(cache).to(kv_dtype), torch.zeros_like(cache).to(kv_dtype)
    want = reference.write_qkv(**arguments, k_cache=caches[0][0], v_cache=caches[0][1])
    got = OPERATOR[path](**arguments, k_cache=caches[1][0], v_cache=caches[1][1])
    assert_close(got, want)
    written = caches[0].float(), caches[1].float()
    assert torch.equal(written[0][1], written[1][1])  # values are only rounded once
    # A last bit of difference before quantisation moves few values to the next code.
    assert (written[0] != written[1]).float().mean() < (0.2 if dtype == torch.bfloat16 else 0.01)
    tolerance = 0.05 if dtype == torch.bfloat16 else 0.01
    assert (written[0] - written[1]).norm() / written[0].norm() < tolerance


@QUANTISED
@pytest.mark.parametrize("num_scales", [1, 2])
def test_write_kv_quantises_to_the_same_bits(path, device, dtype, kv_dtype, num_scales):
    k, v = (3 * torch.randn(2, 21, 2, 80, device=device)).to(dtype)
    want = torch.zeros(2, 3, 16, 2, 80, device=device).to(kv_dtype)
    got = want.clone()
    slots = torch.randperm(48, device=device)[:21]
    slots[::4] = PAD_SLOT
    scales = {"k_scale": torch.rand(num_scales, device=device) + 0.01}
    scales["v_scale"] = torch.rand(num_scales, device=device) / 100 + 1e-4
    reference.write_kv(k, v, want[0], want[1], slots, **scales)
    WRITE_KV[path](k, v, got[0], got[1], slots, **scales)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def test_every_e4m3_code_is_taken_apart_and_put_together():
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    exact = codes.float()[~codes.float().isnan()].to(GPU_OR_CPU)
    between = (exact.sort().values[1:] + exact.sort().values[:-1]) / 2
    x = torch.cat(
        [exact, between, between * 1.0001, torch.tensor([500.0, -9e9], device=GPU_OR_CPU)]
    )
    new = x[None, None]
    cache = torch.zeros(1, 1, 1, len(x), dtype=torch.float8_e4m3fn, device=GPU_OR_CPU)
    one = torch.ones(1, device=GPU_OR_CPU)
    slots = torch.zeros(1, dtype=torch.int64, device=GPU_OR_CPU)
    triton_kv_write.write_kv(new, new, cache, cache.clone(), slots, one, one)
    want = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(cache.flatten().view(torch.uint8), want.view(torch.uint8))


def test_gpus_with_e4m3_conversions_use_them(monkeypatch):
    cache = torch.zeros(1, 16, 1, 8, dtype=torch.float8_e4m3fn)
    assert one_byte_tiles.kernel_cache(cache)[0].dtype == torch.uint8
    monkeypatch.setattr(one_byte_tiles, "converts_e4m3", lambda _: True)
    assert one_byte_tiles.kernel_cache(cache)[0] is cache


@QUANTISED
def test_dequantise_undoes_quantise(kv_dtype):
    x = torch.randn(63, 2, 64)
    scale = torch.tensor([0.03, 0.05])
    restored = dequantise(quantise(x, scale, kv_dtype), scale, torch.float32)
    assert (restored - x).norm() / x.norm() < 0.04


def test_says_what_does_not_fit():
    arguments, cache = make_case("cpu", torch.device("cpu"), torch.float32)
    arguments |= {"k_cache": cache[0], "v_cache": cache[1]}

    def refused(message, **changed):
        with pytest.raises(ValueError, match=message):
            write_qkv(**(arguments | changed))

    refused(r"qkv: expected shape \[any, 640\], got \[15, 576\]", qkv=torch.ones(15, 576))
    refused("num_heads: expected >= 1, got 0", num_heads=0)
    refused("q_norm, k_norm: expected both or neither", q_norm=None)
    refused(r"k_norm: expected shape \[64\], got \[32\]", k_norm=torch.ones(32))
    refused(r"positions: expected shape \[15\], got \[3\]", positions=torch.zeros(3).long())
    refused("cos_sin: expected an even width <= head_dim 64", cos_sin=torch.ones(9, 66))
    refused("cos_sin: expected fp32 on cpu", cos_sin=torch.ones(9, 64).half())
    refused("v_scale: expected None for a torch.float32", v_scale=torch.ones(1))
    refused("v_cache: expected torch.float32 on cpu as qkv", v_cache=cache[1].half())
