"""Decode over one-byte KV caches, beside the same decode over bf16 and FlashInfer's fp8 decode."""

from dataclasses import dataclass

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.bench_paged_attention import DECODE_TILES
from gpu.kernels.cases.inputs import PagedCase, paged_case, poisoned_like, relative_error
from gpu.kernels.tunable import Tunable
from pagoda_kernels import paged_attention
from pagoda_kernels.attention import reference
from pagoda_kernels.kv.quantisation import quantise
from pagoda_kernels.tuning import attention_shape

HEADS, HEAD_DIM, BLOCK_SIZE = (32, 8), 128, 16
SCALE = HEAD_DIM**-0.5
WORKSPACE_BYTES = 256 << 20
NAMES = {torch.float8_e4m3fn: "fp8", torch.int8: "int8"}


def cases(device: torch.device) -> list[Case]:
    fp8 = [
        decode_case(device, batch, 8192, torch.float8_e4m3fn, 0.85 if batch >= 16 else None)
        for batch in (1, 16, 64)
    ]
    return [*fp8, decode_case(device, 64, 8192, torch.int8, 0.85)]


def tunables(device: torch.device) -> list[Tunable]:
    """Tile shapes of the decode kernel."""
    sizes = (16, 1024), (64, 1024), (16, 8192), (64, 8192)
    decodes = [decode_case(device, *size, torch.float8_e4m3fn, None) for size in sizes]
    return [Tunable("attention_decode", attention_shape(HEAD_DIM, 2, 1), decodes, DECODE_TILES)]


def decode_case(
    device: torch.device, batch: int, context: int, kv_dtype: torch.dtype, goal: float | None
) -> Case:
    """One new token per sequence: a byte for every element of K and V."""
    num_heads, num_kv_heads = HEADS
    kv = 2 * batch * context * num_kv_heads * HEAD_DIM
    q_and_out = 2 * 2 * batch * num_heads * HEAD_DIM
    baselines = {"bf16 cache": lambda: _plain(_paged(device, batch, context))}
    if kv_dtype == torch.float8_e4m3fn:
        baselines["flashinfer"] = lambda: _flashinfer(_inputs(device, batch, context, kv_dtype))
    return Case(
        op="attention_quantised",
        name=f"decode b{batch} ctx{context} {NAMES[kv_dtype]} KV",
        check=lambda seed: _error(_inputs(device, batch, context, kv_dtype, seed)),
        tolerance=8e-3,
        build=lambda: _launch(_inputs(device, batch, context, kv_dtype)),
        num_bytes=kv + q_and_out,
        goal=goal,
        baselines=baselines,
    )


@dataclass(frozen=True)
class _Inputs:
    case: PagedCase
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor


def _paged(device: torch.device, batch: int, context: int) -> PagedCase:
    return paged_case(
        seqlens_q=[1] * batch,
        context_lens=[context] * batch,
        heads=HEADS,
        head_dim=HEAD_DIM,
        block_size=BLOCK_SIZE,
        dtype=torch.bfloat16,
        device=device,
    )


def _inputs(
    device: torch.device, batch: int, context: int, kv_dtype: torch.dtype, seed: int | None = None
) -> _Inputs:
    """Scales per tensor, which is what FlashInfer takes too."""
    if seed is not None:
        torch.manual_seed(seed)
    case = _paged(device, batch, context)
    scales = (torch.rand(2, 1, device=device) + 1) * (0.03 if kv_dtype == torch.int8 else 0.05)
    k_cache, v_cache = (
        quantise(cache.flatten(0, 1), scale, kv_dtype).unflatten(0, cache.shape[:2])
        for cache, scale in zip((case.k_cache, case.v_cache), scales, strict=True)
    )
    return _Inputs(case, k_cache, v_cache, scales[0], scales[1])


def _launch(inputs: _Inputs) -> Launch:
    case, out = inputs.case, torch.empty_like(inputs.case.q)
    return lambda: paged_attention(
        case.q,
        inputs.k_cache,
        inputs.v_cache,
        case.batch,
        scale=SCALE,
        k_scale=inputs.k_scale,
        v_scale=inputs.v_scale,
        out=out,
    )


def _error(inputs: _Inputs) -> float:
    """Of the whole launch, against the fp32 reference."""
    case, out = inputs.case, poisoned_like(inputs.case.q)
    scales = {"k_scale": inputs.k_scale, "v_scale": inputs.v_scale}
    caches = inputs.k_cache, inputs.v_cache
    paged_attention(case.q, *caches, case.batch, scale=SCALE, out=out, **scales)
    want = reference.paged_attention(case.q, *caches, case.batch, scale=SCALE, **scales)
    return relative_error(out, want)


def _plain(case: PagedCase) -> Launch:
    out = torch.empty_like(case.q)
    return lambda: paged_attention(
        case.q, case.k_cache, case.v_cache, case.batch, scale=SCALE, out=out
    )


def _flashinfer(inputs: _Inputs) -> Launch:
    import flashinfer

    batch, device = inputs.case.batch, inputs.case.q.device
    used = [-(-context // BLOCK_SIZE) for context in batch.context_lens_host]
    indptr = torch.tensor([0, *used], device=device).cumsum(0).int()
    tables = [batch.block_tables[seq, :count] for seq, count in enumerate(used)]
    last = [context - (count - 1) * BLOCK_SIZE
            for context, count in zip(batch.context_lens_host, used, strict=True)]  # fmt: skip
    pages = indptr, torch.cat(tables), torch.tensor(last, dtype=torch.int32, device=device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    decode.plan(
        *pages,
        *HEADS,
        HEAD_DIM,
        BLOCK_SIZE,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.float8_e4m3fn,
    )
    scales = {"k_scale": inputs.k_scale.item(), "v_scale": inputs.v_scale.item()}
    return lambda: decode.run(inputs.case.q, (inputs.k_cache, inputs.v_cache), **scales)
