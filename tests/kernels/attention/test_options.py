"""Paged attention with sinks, quantised caches, fixed splits, and by tensor descriptors."""

import random

import pytest
import torch
from support.paged_case import FP32_AND_BF16, make_case

from pagoda_kernels import paged_attention
from pagoda_kernels.attention.triton import splits
from pagoda_kernels.attention.triton.cache_descriptors import describe
from pagoda_kernels.attention.triton.decode import decode
from pagoda_kernels.attention.triton.prefill import prefill
from pagoda_kernels.triton import one_byte_tiles

GPU_OR_CPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MIXED = [1, 63, 1, 20], [127, 100, 9, 20]
KV_DTYPES = pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.int8])


@pytest.mark.parametrize("window", [None, 40])
@FP32_AND_BF16
def test_sinks(path, device, dtype, window, assert_close):
    case = make_case(*MIXED, heads=(6, 2), dtype=dtype, device=device)
    sinks = 3 * torch.randn(6, device=device)
    got = case.got(path, sinks=sinks, sliding_window=window)
    assert_close(got, case.want(sinks=sinks, sliding_window=window))


def test_a_sink_beyond_reach_changes_nothing(path, device, assert_close):
    case = make_case(*MIXED, dtype=torch.float32, device=device)
    sinks = torch.full((2,), -1e4, device=device)
    assert_close(case.got(path, sinks=sinks), case.want())


@pytest.mark.parametrize("least", [float("-inf"), -3e38])
def test_the_least_sinks_there_are_change_nothing(path, device, least, assert_close):
    """Rows at the end of a window see no key of the first tile."""
    case = make_case([65, 1], [265, 200], dtype=torch.float32, device=device)
    sinks = torch.full((2,), least, device=device)
    got = case.got(path, sinks=sinks, sliding_window=100)
    assert_close(got, case.want(sliding_window=100))


@KV_DTYPES
@pytest.mark.parametrize("num_scales", [1, 2])
@FP32_AND_BF16
def test_quantised_cache(path, device, dtype, kv_dtype, num_scales, assert_close):
    case = make_case(*MIXED, heads=(6, 2), dtype=dtype, device=device)
    case.quantised(kv_dtype, num_scales)
    assert_close(case.got(path), case.want())


@KV_DTYPES
@pytest.mark.parametrize("head_dim", [80, 128, 256])
def test_everything_at_once(path, device, kv_dtype, head_dim, assert_close):
    case = make_case(
        [1, 33],
        [70, 65],
        heads=(4, 2),
        head_dim=head_dim,
        block_size=32,
        dtype=torch.float16,
        device=device,
    )
    case.quantised(kv_dtype, 2)
    options = {"sliding_window": 30, "soft_cap": 4.0, "sinks": torch.randn(4, device=device)}
    assert_close(case.got(path, **options), case.want(**options))


def test_takes_e4m3_apart_or_leaves_it_to_the_gpu(monkeypatch, assert_close):
    case = make_case(*MIXED, dtype=torch.float16, device=GPU_OR_CPU)
    case.quantised(torch.float8_e4m3fn)
    can_convert = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 9)
    for converts in (False, True)[: 1 + can_convert]:
        monkeypatch.setattr(one_byte_tiles, "converts_e4m3", lambda _, converts=converts: converts)
        assert_close(case.got("triton"), case.want())


@KV_DTYPES
def test_bf16_queries_of_any_size_meet_one_byte_keys(path, device, kv_dtype, assert_close):
    case = make_case(*MIXED, heads=(4, 2), dtype=torch.bfloat16, device=device)
    case.quantised(kv_dtype, 2)
    case.q *= torch.tensor([2.0**20, 1.0, 2.0**-70, 0.0], device=device)[:, None]
    case.scale *= 2.0**-20
    assert_close(case.got(path), case.want())


@pytest.mark.parametrize("num_splits", [1, 3, 20])
def test_fixed_splits_of_quantised_keys_with_sinks(num_splits, assert_close):
    case = make_case([1, 1], [600, 65], heads=(4, 2), dtype=torch.float16, device=GPU_OR_CPU)
    case.quantised(torch.int8, 2)
    sinks = torch.randn(4, device=GPU_OR_CPU)
    got = case.got("triton", sinks=sinks, num_splits=num_splits)
    assert_close(got, case.want(sinks=sinks))


@pytest.mark.parametrize("window", [None, 100])
def test_batch_invariant_bits(dtype, seed, window, monkeypatch, assert_close):
    monkeypatch.setattr(splits, "INVARIANT_SPLIT_TOKENS", 64)
    monkeypatch.setattr(splits, "INVARIANT_MAX_SPLITS", 20)
    rng = random.Random(seed)
    new = [1, 1, 1, 30]
    context = [rng.randint(1, 63), rng.randint(64, 300), 1400, rng.randint(30, 90)]
    case = make_case(new, context, dtype=dtype, device=GPU_OR_CPU)
    options = {"sliding_window": window, "is_batch_invariant": True}
    together = case.got("triton", **options)
    assert_close(together, case.want(sliding_window=window))
    starts = case.batch.cu_seqlens_q.tolist()
    for seq in range(len(new)):
        alone = case.sequence(seq).got("triton", **options)
        assert torch.equal(together[starts[seq] : starts[seq + 1]], alone)


@pytest.mark.parametrize("block_size", [64, 128])
@pytest.mark.parametrize("window", [None, 90, 150])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 256])
def test_descriptors_match_pointers(block_size, window, head_dim, assert_close):
    device = GPU_OR_CPU
    case = make_case(
        [63, 127],
        [400, 127],
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.float16,
        device=device,
    )
    rule = case.rule(sliding_window=window)
    arguments = case.q, case.k_cache, case.v_cache, case.batch, rule
    outs = [torch.full_like(case.q, float("nan")) for _ in range(2)]
    for out, with_descriptors in zip(outs, (False, True), strict=True):
        prefill(*arguments, out, with_descriptors)
        assert_close(out, case.want(sliding_window=window))


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_descriptors_of_every_cache_with_every_option(kv_dtype, assert_close):
    case = make_case(
        [127], [330], heads=(4, 2), block_size=64, dtype=torch.bfloat16, device=GPU_OR_CPU
    )
    if kv_dtype != torch.bfloat16:
        case.quantised(kv_dtype, 2)
    options = {"soft_cap": 5.0, "sinks": torch.randn(4, device=GPU_OR_CPU)}
    out = torch.full_like(case.q, float("nan"))
    rule = case.rule(**options)
    prefill(case.q, case.k_cache, case.v_cache, case.batch, rule, out, with_descriptors=True)
    assert_close(out, case.want(**options))


@pytest.mark.parametrize(
    ("block_size", "head_dim", "block_n"),
    [(64, 128, 64), (128, 128, 128), (128, 256, 32), (16, 128, None), (64, 60, None)],
)
def test_descriptors_need_whole_aligned_tiles(block_size, head_dim, block_n):
    cache = torch.zeros(3, block_size, 2, head_dim, dtype=torch.bfloat16)
    described = describe(cache, cache, 2, True)
    assert (None if described is None else described.block_n) == block_n
    assert describe(cache, cache, 4, True) is None


def test_every_split_may_be_empty_but_the_first(assert_close):
    case = make_case([1, 1], [2, 70], dtype=torch.float32, device=GPU_OR_CPU)
    out = torch.full_like(case.q, float("nan"))
    decode(case.q, case.k_cache, case.v_cache, case.batch, case.rule(), out, num_splits=40)
    assert_close(out, case.want())


def test_says_what_does_not_fit():
    case = make_case([1, 3], [9, 3], heads=(4, 2), dtype=torch.float32, device=torch.device("cpu"))
    q, k, v, batch = case.q, case.k_cache, case.v_cache, case.batch
    one = torch.ones(1)

    def refused(message, k=k, v=v, **options):
        with pytest.raises(ValueError, match=message):
            paged_attention(q, k, v, batch, scale=1.0, **options)

    refused(r"sinks: expected shape \[4\], got \[2\]", sinks=torch.ones(2))
    refused("sinks: expected fp32, fp16 or bf16, got torch.int64", sinks=torch.ones(4).long())
    refused("num_splits: expected >= 1, got 0", num_splits=0)
    refused("num_splits: expected None in batch-inv", num_splits=2, is_batch_invariant=True)
    refused("k_scale: expected None for a torch.float32 cache", k_scale=one)
    refused("k_scale: expected a tensor for a torch.int8 cache", k=k.nan_to_num().to(torch.int8))
    quantised = k.to(torch.float8_e4m3fn)
    refused(r"k_scale: expected shape \[1\] or \[2\]", k=quantised, k_scale=torch.ones(3))
    refused("k_scale: expected fp32 on cpu", k=quantised, k_scale=one.half())
    refused("v_cache: expected torch.float8_e4m3fn as k_cache", k=quantised, k_scale=one)
