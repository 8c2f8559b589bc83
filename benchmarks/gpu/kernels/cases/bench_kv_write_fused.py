"""Fused QK-norm, RoPE and KV write, beside the separate operators and `torch.compile` of them."""

from dataclasses import dataclass

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels import apply_rope, rms_norm, write_kv
from pagoda_kernels.kv import reference
from pagoda_kernels.kv.write_qkv import write_qkv

HEADS, HEAD_DIM, BLOCK_SIZE = (32, 8), 128, 16
MAX_POSITION = 8192
EPS = 1e-6


def cases(device: torch.device) -> list[Case]:
    plain = [fused_case(device, tokens, torch.bfloat16) for tokens in (64, 8192)]
    largest = fused_case(device, 65536, torch.bfloat16, goal=0.85)
    return [*plain, largest, fused_case(device, 65536, torch.float8_e4m3fn, goal=0.85)]


def fused_case(
    device: torch.device, num_tokens: int, kv_dtype: torch.dtype, goal: float | None = None
) -> Case:
    """The projection read once; q, K and V written once; one row of cosines and sines per token."""
    num_heads, num_kv_heads = HEADS
    read = num_tokens * (num_heads + 2 * num_kv_heads) * HEAD_DIM * 2
    written = num_tokens * HEAD_DIM * (num_heads * 2 + 2 * num_kv_heads * kv_dtype.itemsize)
    kind = "fp8" if kv_dtype.itemsize == 1 else "bf16"
    baselines = {}
    if kind == "bf16":
        baselines = {
            "separate": lambda: _separate(_inputs(device, num_tokens, kv_dtype)),
            "compile": lambda: _compiled(_inputs(device, num_tokens, kv_dtype)),
        }
    return Case(
        op="kv_write_fused",
        name=f"T{num_tokens} H32 HK8 D128 QK-norm RoPE {kind} cache",
        check=lambda seed: _error(device, num_tokens, kv_dtype, seed),
        tolerance=8e-3 if kind == "bf16" else 2e-2,
        build=lambda: _launch(_inputs(device, num_tokens, kv_dtype)),
        num_bytes=read + written + num_tokens * (HEAD_DIM * 4 + 16),
        goal=goal,
        baselines=baselines,
    )


@dataclass(frozen=True)
class _Inputs:
    qkv: torch.Tensor
    positions: torch.Tensor
    cos_sin: torch.Tensor
    cache: torch.Tensor
    slots: torch.Tensor
    norms: torch.Tensor
    scale: torch.Tensor | None


def _inputs(device: torch.device, num_tokens: int, kv_dtype: torch.dtype) -> _Inputs:
    num_heads, num_kv_heads = HEADS
    width = (num_heads + 2 * num_kv_heads) * HEAD_DIM
    angles = torch.rand(MAX_POSITION, HEAD_DIM // 2, device=device) * 6.3
    num_blocks = -(-2 * num_tokens // BLOCK_SIZE)
    shape = (2, num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM)
    return _Inputs(
        torch.randn(num_tokens, width, dtype=torch.bfloat16, device=device),
        torch.randint(0, MAX_POSITION, (num_tokens,), device=device),
        torch.cat([angles.cos(), angles.sin()], -1),
        torch.randn(shape, device=device).to(kv_dtype),
        torch.randperm(num_blocks * BLOCK_SIZE, device=device)[:num_tokens],
        torch.randn(2, HEAD_DIM, device=device).bfloat16(),
        None if kv_dtype.itemsize > 1 else torch.rand(num_kv_heads, device=device) / 50 + 0.01,
    )


def _fused(inputs: _Inputs, cache: torch.Tensor) -> torch.Tensor:
    return write_qkv(
        inputs.qkv,
        inputs.positions,
        inputs.cos_sin,
        cache[0],
        cache[1],
        inputs.slots,
        num_heads=HEADS[0],
        q_norm=inputs.norms[0],
        k_norm=inputs.norms[1],
        eps=EPS,
        k_scale=inputs.scale,
        v_scale=inputs.scale,
    )


def _error(device: torch.device, num_tokens: int, kv_dtype: torch.dtype, seed: int) -> float:
    """The larger error of q and cache; the reference writes token by token, so few tokens."""
    torch.manual_seed(seed)
    inputs = _inputs(device, min(num_tokens, 2048), kv_dtype)
    want_cache, got_cache = inputs.cache.clone(), inputs.cache.clone()
    want = reference.write_qkv(
        inputs.qkv,
        inputs.positions,
        inputs.cos_sin,
        want_cache[0],
        want_cache[1],
        inputs.slots,
        num_heads=HEADS[0],
        q_norm=inputs.norms[0],
        k_norm=inputs.norms[1],
        eps=EPS,
        k_scale=inputs.scale,
        v_scale=inputs.scale,
    )
    got = _fused(inputs, got_cache)
    return max(relative_error(got, want), relative_error(got_cache.float(), want_cache.float()))


def _launch(inputs: _Inputs) -> Launch:
    return lambda: _fused(inputs, inputs.cache)


def _split(inputs: _Inputs) -> tuple[torch.Tensor, ...]:
    heads = inputs.qkv.unflatten(1, (-1, HEAD_DIM))
    return heads.split([HEADS[0], HEADS[1], HEADS[1]], 1)


def _separate(inputs: _Inputs) -> Launch:
    def launch() -> None:
        q, k, v = _split(inputs)
        q, k = rms_norm(q, inputs.norms[0], EPS), rms_norm(k, inputs.norms[1], EPS)
        _, k = apply_rope(q, k, inputs.positions, inputs.cos_sin)
        write_kv(k, v, inputs.cache[0], inputs.cache[1], inputs.slots)

    return launch


def _compiled(inputs: _Inputs) -> Launch:
    rows = inputs.cache.flatten(1, 2)

    def turned(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        a, b = (wide.to(x.dtype) * weight).float().chunk(2, -1)
        cos, sin = inputs.cos_sin[inputs.positions][:, None].chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def plain() -> torch.Tensor:
        q, k, v = _split(inputs)
        rows[0].index_copy_(0, inputs.slots, turned(k, inputs.norms[1]))
        rows[1].index_copy_(0, inputs.slots, v)
        return turned(q, inputs.norms[0])

    return torch.compile(plain, dynamic=False)
