"""Paged attention beside SDPA, FlexAttention and FlashInfer on the same K and V.

SDPA and FlexAttention read K and V that are already contiguous, so they save the block tables.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import PagedCase, paged_case, poisoned_like, relative_error
from gpu.kernels.tunable import Tunable, tiles
from pagoda_kernels import decode_batch, paged_attention
from pagoda_kernels.tuning import attention_shape

BLOCK_SIZE = 16
HEADS = (32, 8)
HEAD_DIM = 128
TOLERANCE = 8e-3
HEADS_AT_ONCE = 4
WORKSPACE_BYTES = 256 << 20
MAX_CONTEXT = 131072
TUNED_DECODES = ((1, 1024), (16, 1024), (64, 1024), (16, 8192), (64, 8192))
"""Batch and context."""

DECODE_TILES = [
    *tiles(BLOCK_N=(16, 32, 64, 128), num_warps=(4,), num_stages=(2, 3, 5)),
    *tiles(BLOCK_N=(64, 128), num_warps=(8,), num_stages=(2, 3)),
]
PREFILL_TILES = [
    *tiles(BLOCK_M=(64,), BLOCK_N=(32, 64, 128), num_warps=(4,), num_stages=(2, 3, 5)),
    *tiles(BLOCK_M=(128,), BLOCK_N=(32, 64, 128), num_warps=(8,), num_stages=(2, 3, 5)),
]

Build = Callable[[], PagedCase]


def cases(device: torch.device) -> list[Case]:
    decodes = [
        decode_case(device, batch, context, goal=0.85 if batch >= 16 and context == 8192 else None)
        for context in (1024, 8192)
        for batch in (1, 16, 64)
    ]
    prefills = [
        prefill_case(device, 8192, block_size=block_size, goal=0.6) for block_size in (16, 128)
    ]
    bounded = [
        bounded_case(device, [1024] * 16, "b16 ctx1024"),
        bounded_case(device, [MAX_CONTEXT, *[1024] * 63], "b64 ctx1024, one of the bound,"),
    ]
    return [*decodes, *bounded, *prefills]


def tunables(device: torch.device) -> list[Tunable]:
    """Tile shapes of both kernels, what most models have first."""
    found = []
    for head_dim in (128, 64, 256):
        shape = attention_shape(head_dim, 2)
        decodes = [decode_case(device, *size, head_dim=head_dim) for size in TUNED_DECODES]
        prefill = prefill_case(device, 8192, head_dim=head_dim)
        found += [
            Tunable("attention_decode", shape, decodes, DECODE_TILES),
            Tunable("attention_prefill", shape, [prefill], PREFILL_TILES),
        ]
        for block_size in (128, 64):
            case = prefill_case(device, 8192, head_dim=head_dim, block_size=block_size)
            within = [tile for tile in PREFILL_TILES if tile["BLOCK_N"] <= block_size]
            key = f"{shape}, block {block_size}"
            found.append(Tunable("attention_prefill_described", key, [case], within))
    return found


def decode_case(
    device: torch.device,
    batch: int,
    context: int,
    *,
    head_dim: int = HEAD_DIM,
    goal: float | None = None,
) -> Case:
    """One new token in each of `batch` sequences: limited by the bytes of K and V."""
    build = _builder([1] * batch, [context] * batch, head_dim, BLOCK_SIZE, device)
    num_heads, num_kv_heads = HEADS
    kv = 2 * batch * context * num_kv_heads * head_dim
    q_and_out = 2 * batch * num_heads * head_dim
    name = f"decode b{batch} ctx{context} D{head_dim} bf16"
    return _case(name, build, 2 * (kv + q_and_out), 0, goal)


def bounded_case(
    device: torch.device, context_lens: list[int], words: str, max_context: int = MAX_CONTEXT
) -> Case:
    """Decodes as a captured graph launches them: nothing but a bound of the lengths is known."""
    exact = _builder([1] * len(context_lens), context_lens, HEAD_DIM, BLOCK_SIZE, device)
    num_heads, num_kv_heads = HEADS
    elements = 2 * HEAD_DIM * (sum(context_lens) * num_kv_heads + len(context_lens) * num_heads)
    return Case(
        op="paged_attention",
        name=f"decode {words} bound {max_context} D{HEAD_DIM} bf16",
        check=lambda seed: _error(lambda: _bounded(exact(), max_context), seed),
        tolerance=TOLERANCE,
        build=lambda: _launch(_bounded(exact(), max_context)),
        num_bytes=2 * elements,
    )


def _bounded(case: PagedCase, max_context: int) -> PagedCase:
    exact = case.batch
    missing = -(-max_context // BLOCK_SIZE) - exact.block_tables.shape[1]
    batch = decode_batch(
        context_lens=exact.context_lens,
        block_tables=F.pad(exact.block_tables, (0, missing)),
        slot_mapping=exact.slot_mapping,
        cu_seqlens_q=exact.cu_seqlens_q,
        block_size=BLOCK_SIZE,
        max_context_len=max_context,
    )
    return replace(case, batch=batch)


def prefill_case(
    device: torch.device,
    num_tokens: int,
    *,
    head_dim: int = HEAD_DIM,
    block_size: int = BLOCK_SIZE,
    goal: float | None = None,
) -> Case:
    """One whole prompt: limited by the products under the causal triangle."""
    build = _builder([num_tokens], [num_tokens], head_dim, block_size, device)
    pairs = num_tokens * (num_tokens + 1) // 2
    name = f"prefill T{num_tokens} D{head_dim} block{block_size} bf16"
    return _case(name, build, 0, 4 * pairs * HEADS[0] * head_dim, goal)


def _builder(
    seqlens_q: list[int],
    context_lens: list[int],
    head_dim: int,
    block_size: int,
    device: torch.device,
) -> Build:
    return lambda: paged_case(
        seqlens_q=seqlens_q,
        context_lens=context_lens,
        heads=HEADS,
        head_dim=head_dim,
        block_size=block_size,
        dtype=torch.bfloat16,
        device=device,
    )


def _case(name: str, build: Build, num_bytes: int, num_flops: int, goal: float | None) -> Case:
    return Case(
        op="paged_attention",
        name=name,
        check=lambda seed: _error(build, seed),
        tolerance=TOLERANCE,
        build=lambda: _launch(build()),
        num_bytes=num_bytes,
        num_flops=num_flops,
        goal=goal,
        baselines={
            "sdpa": lambda: _sdpa(build()),
            "flex": lambda: _flex(build()),
            "flashinfer": lambda: _flashinfer(build()),
        },
    )


def _launch(case: PagedCase) -> Launch:
    out, scale = torch.empty_like(case.q), case.q.shape[2] ** -0.5
    return lambda: paged_attention(
        case.q, case.k_cache, case.v_cache, case.batch, scale=scale, out=out
    )


def _error(build: Build, seed: int) -> float:
    torch.manual_seed(seed)
    case = build()
    out = poisoned_like(case.q)
    scale = case.q.shape[2] ** -0.5
    paged_attention(case.q, case.k_cache, case.v_cache, case.batch, scale=scale, out=out)
    return relative_error(out, _want(case))


def _want(case: PagedCase) -> torch.Tensor:
    """fp32 attention, a few KV heads at a time so that the scores of a long prompt fit."""
    want = torch.empty(case.q.shape, dtype=torch.float32, device=case.q.device)
    group = HEADS[0] // HEADS[1]
    step = max(1, HEADS_AT_ONCE // group)
    start = 0
    for seq, num_new in enumerate(case.batch.seqlens_q_host):
        k, v = case.contiguous_kv(seq)
        rows = slice(start, start + num_new)
        for head in range(0, HEADS[1], step):
            heads = slice(head * group, (head + step) * group)
            few_k = k[:, head : head + step].float().repeat_interleave(group, 1)
            few_v = v[:, head : head + step].float().repeat_interleave(group, 1)
            want[rows, heads] = _dense(case.q[rows, heads].float(), few_k, few_v)
        start += num_new
    return want


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("thd,nhd->htn", q, k) / math.sqrt(q.shape[2])
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
    hidden = hidden.triu(1 + scores.shape[2] - scores.shape[1])
    return torch.einsum("htn,nhd->thd", scores.masked_fill_(hidden, -torch.inf).softmax(-1), v)


def _contiguous(case: PagedCase) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(q, k, v) as ``[S, heads, tokens, D]``; all sequences of a case are equally long."""
    num_seqs = len(case.batch.seqlens_q_host)
    pairs = [case.contiguous_kv(seq) for seq in range(num_seqs)]
    k, v = (
        torch.stack(list(side)).transpose(1, 2).contiguous() for side in zip(*pairs, strict=True)
    )
    return case.q.unflatten(0, (num_seqs, -1)).transpose(1, 2).contiguous(), k, v


def _sdpa(case: PagedCase) -> Launch:
    q, k, v = _contiguous(case)
    is_causal = q.shape[2] > 1
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


def _flex(case: PagedCase) -> Launch:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = _contiguous(case)
    compiled = torch.compile(flex_attention, dynamic=False)
    if q.shape[2] == 1:
        return lambda: compiled(q, k, v, enable_gqa=True)
    num_tokens = q.shape[2]
    mask = create_block_mask(
        lambda b, h, query, key: key <= query, None, None, num_tokens, num_tokens, device=q.device
    )
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=True)


def _flashinfer(case: PagedCase) -> Launch:
    import flashinfer

    batch, device, block_size = case.batch, case.q.device, case.batch.block_size
    used = [-(-context // block_size) for context in batch.context_lens_host]
    indptr = torch.tensor([0, *used], device=device).cumsum(0).int()
    tables = [batch.block_tables[seq, :count] for seq, count in enumerate(used)]
    last = [context - (count - 1) * block_size
            for context, count in zip(batch.context_lens_host, used, strict=True)]  # fmt: skip
    pages = indptr, torch.cat(tables), torch.tensor(last, dtype=torch.int32, device=device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    shape = (*HEADS, case.q.shape[2], block_size)
    cache = case.k_cache, case.v_cache
    if max(batch.seqlens_q_host) == 1:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        decode.plan(*pages, *shape, q_data_type=case.q.dtype, kv_data_type=case.q.dtype)
        return lambda: decode.run(case.q, cache)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    prefill.plan(batch.cu_seqlens_q, *pages, *shape, causal=True, q_data_type=case.q.dtype)
    return lambda: prefill.run(case.q, cache)
