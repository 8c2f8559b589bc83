import random

import pytest
import torch
import torch.nn.functional as F
from support.paged_case import FP32_AND_BF16, make_case

from pagoda_kernels import paged_attention
from pagoda_kernels.attention.score_rule import ScoreRule
from pagoda_kernels.attention.triton.decode import decode

LENGTHS = {
    "decodes": ([1, 1, 1, 1], [1, 63, 127, 290]),
    "prompts": ([63, 2, 127], [63, 2, 127]),
    "chunks": ([63, 127, 17], [64, 190, 300]),
    "mixed": ([1, 63, 1, 127, 2], [65, 63, 1, 254, 129]),
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_matches_reference(path, device, dtype, lengths, assert_close):
    case = make_case(*lengths, heads=(6, 2), dtype=dtype, device=device)
    assert_close(case.got(path), case.want())


@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (7, 1), (8, 2)], ids=["MHA", "MQA", "GQA"])
def test_head_shapes(path, device, head_dim, heads, assert_close):
    case = make_case(
        [1, 33], [70, 65], heads=heads, head_dim=head_dim, dtype=torch.float32, device=device
    )
    assert_close(case.got(path), case.want())


@pytest.mark.parametrize("block_size", [16, 24, 32, 64, 128])
@FP32_AND_BF16
def test_block_sizes(path, device, block_size, dtype, assert_close):
    case = make_case([1, 63, 1], [127, 190, 129], block_size=block_size, dtype=dtype, device=device)
    assert_close(case.got(path), case.want())


@pytest.mark.parametrize("window", [1, 17, 64, 1000])
@FP32_AND_BF16
def test_sliding_window(path, device, dtype, window, assert_close):
    case = make_case([1, 127, 63, 1], [200, 127, 190, 3], dtype=dtype, device=device)
    assert_close(case.got(path, sliding_window=window), case.want(sliding_window=window))


@pytest.mark.parametrize("window", [1, 17, 64])
@FP32_AND_BF16
def test_what_lies_behind_a_window_is_not_read(path, device, dtype, window, assert_close):
    """Its blocks may be somebody else's by now, who may have written anything."""
    new, context = [1, 127, 63, 1, 20], [200, 127, 190, 3, 401]
    case = make_case(new, context, dtype=dtype, device=device)
    want = case.want(sliding_window=window)
    for table, num_new, length in zip(case.batch.block_tables, new, context, strict=True):
        behind = table[: max(0, length - num_new + 1 - window) // case.batch.block_size].long()
        case.k_cache[behind] = case.v_cache[behind] = float("nan")
    assert_close(case.got(path, sliding_window=window), want)


@pytest.mark.parametrize("window", [None, 40])
@FP32_AND_BF16
def test_soft_cap(path, device, dtype, window, assert_close):
    case = make_case([1, 63, 1], [127, 100, 9], heads=(4, 2), dtype=dtype, device=device)
    case.q *= 8
    options = {"sliding_window": window, "soft_cap": 5.0}
    assert_close(case.got(path, **options), case.want(**options))


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 40}, {"soft_cap": 3.0}],
    ids=["alone", "window", "soft-cap"],
)
@FP32_AND_BF16
def test_alibi(path, device, dtype, options, assert_close):
    case = make_case([1, 63, 1], [127, 100, 9], heads=(4, 2), dtype=dtype, device=device)
    options = {**options, "alibi_slopes": torch.tensor([0.5, 0.1, 0.02, 0.0], device=device)}
    assert_close(case.got(path, **options), case.want(**options))


def test_alibi_needs_a_slope_for_every_head():
    case = make_case([3], [3], heads=(4, 2), dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"alibi_slopes: expected shape \[4\], got \[2\]"):
        case.got("cpu", alibi_slopes=torch.ones(2))
    with pytest.raises(ValueError, match="sinks, alibi_slopes: expected one of them at most"):
        case.got("cpu", alibi_slopes=torch.ones(4), sinks=torch.ones(4))


def test_takes_q_sliced_and_blocks_apart_in_memory(path, device, dtype, assert_close):
    case = make_case([1, 63], [127, 63], heads=(4, 2), dtype=dtype, device=device)
    wide = torch.randn(64, 8 * 64, device=device).to(dtype)
    case.q = wide[:, 64:320].unflatten(1, (4, 64))
    pool = torch.stack([case.k_cache, case.v_cache], 1)
    case.k_cache, case.v_cache = pool[:, 0], pool[:, 1]
    assert_close(case.got(path), case.want())


@pytest.mark.slow
def test_random_mixed_batches(path, device, seed, assert_close):
    rng = random.Random(seed)
    for _ in range(8):
        new = [rng.choice([1, 1, 1, 2, 5, 64, 65]) for _ in range(rng.randint(1, 6))]
        case = make_case(
            new,
            [n + rng.choice([0, 1, 31, 200]) for n in new],
            heads=rng.choice([(2, 1), (3, 3), (8, 2)]),
            head_dim=rng.choice([64, 80]),
            block_size=rng.choice([16, 64]),
            dtype=rng.choice([torch.float32, torch.bfloat16]),
            device=device,
        )
        window = rng.choice([None, None, 50])
        assert_close(case.got(path, sliding_window=window), case.want(sliding_window=window))


@pytest.mark.parametrize("num_splits", [1, 2, 5, 8])
@pytest.mark.parametrize("window", [None, 70])
@FP32_AND_BF16
def test_splits_merge_to_the_whole(dtype, num_splits, window, assert_close):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    case = make_case([1, 1, 1], [300, 1, 65], heads=(6, 2), dtype=dtype, device=device)
    out = torch.full_like(case.q, float("nan"))
    rule = ScoreRule(case.scale, window)
    decode(case.q, case.k_cache, case.v_cache, case.batch, rule, out, num_splits)
    assert_close(out, case.want(sliding_window=window))


def test_writes_to_out(dtype, assert_close):
    case = make_case([1, 20], [40, 20], dtype=dtype, device=torch.device("cpu"))
    out = torch.full((21, 4, 64), float("nan"), dtype=dtype)[:, 1:3]
    got = paged_attention(case.q, case.k_cache, case.v_cache, case.batch, scale=case.scale, out=out)
    assert got is out
    assert_close(out, case.want())


def test_reference_is_dense_causal_attention(assert_close):
    case = make_case([127], [127], heads=(4, 4), dtype=torch.float32, device=torch.device("cpu"))
    table = case.batch.block_tables[0].long()
    k, v = (x[table].flatten(0, 1)[:127] for x in (case.k_cache, case.v_cache))
    q, k, v = (x.transpose(0, 1)[None] for x in (case.q, k, v))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
    assert_close(case.want(), want)


def test_fp32_on_cpu_does_not_depend_on_the_other_sequences(seed):
    rng = random.Random(seed)
    new = [1, 1, 1, 1, 1, 70, 40]
    context = [rng.randint(n, 400) for n in new]
    context[1] = context[0]
    cpu = torch.device("cpu")
    case = make_case(new, context, heads=(8, 2), dtype=torch.float32, device=cpu)
    together = case.got("cpu")
    starts = case.batch.cu_seqlens_q.tolist()
    for seq in range(len(new)):
        assert torch.equal(together[starts[seq] : starts[seq + 1]], case.sequence(seq).got("cpu"))


def test_no_tokens_give_no_rows(path, device):
    case = make_case([], [], dtype=torch.float32, device=device)
    assert case.got(path).shape == (0, 2, 64)


def test_says_what_does_not_fit():
    case = make_case([1, 3], [9, 3], heads=(4, 2), dtype=torch.float32, device=torch.device("cpu"))
    q, k, v, batch = case.q, case.k_cache, case.v_cache, case.batch
    with pytest.raises(ValueError, match=r"q: expected shape \[4, any, any\], got \[3, 4, 64\]"):
        paged_attention(q[:3], k, v, batch, scale=1.0)
    with pytest.raises(ValueError, match=r"k_cache: expected shape \[any, 16, any, 64\]"):
        paged_attention(q, k[:, :8], v[:, :8], batch, scale=1.0)
    with pytest.raises(ValueError, match="q: expected heads a multiple of 2 KV heads, got 3"):
        paged_attention(q[:, :3], k, v, batch, scale=1.0)
    with pytest.raises(ValueError, match=r"v_cache: expected torch.float32 on cpu as q, got"):
        paged_attention(q, k, v.half(), batch, scale=1.0)
    with pytest.raises(ValueError, match="scale: expected > 0, got 0"):
        paged_attention(q, k, v, batch, scale=0.0)
    with pytest.raises(ValueError, match="v_cache: expected stride 1 in the last dim, got 2"):
        paged_attention(q, k, v.repeat_interleave(2, -1)[..., ::2], batch, scale=1.0)
    with pytest.raises(ValueError, match="sliding_window: expected >= 1, got 0"):
        paged_attention(q, k, v, batch, scale=1.0, sliding_window=0)
    with pytest.raises(ValueError, match="soft_cap: expected > 0, got -1"):
        paged_attention(q, k, v, batch, scale=1.0, soft_cap=-1.0)
    with pytest.raises(ValueError, match=r"out: expected shape \[4, 4, 64\], got \[4, 4, 32\]"):
        paged_attention(q, k, v, batch, scale=1.0, out=q[..., :32])
