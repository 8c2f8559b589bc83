"""From the joined projection to the cache in one pass: QK-norm, RoPE, quantised KV write.

Knows the order of heads in a joined projection. Knows nothing of models or sequences.
"""

import torch

from pagoda_kernels.checks import (
    FLOAT_DTYPES,
    check_float,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)
from pagoda_kernels.kv.quantisation import check_cache_dtype
from pagoda_kernels.kv.write_kv import write_kv
from pagoda_kernels.rope.apply_rope import check_cos_sin, turned


def write_qkv(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    num_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Normalise and rotate q and k, write k and v to their slots, return q.

    Same results, rounded at the same places, as `rms_norm` of each head's q and k, `apply_rope` and
    `write_kv` one after another. Reference: `reference.write_qkv`.

    Args:
        qkv: ``[T, (H + 2 * HK) * D]`` fp32, fp16 or bf16: query heads, key heads, value heads; rows
            any distance apart.
        positions: ``[T]`` int32 or int64, each < max_position; padding tokens too.
        cos_sin: ``[max_position, R]`` fp32 contiguous, R <= D even: cosines, then sines; None for
            no rotation.
        k_cache: ``[num_blocks, block_size, HK, D]``, dtype of qkv, float8_e4m3fn or int8; blocks
            dense, any distance apart.
        v_cache: as `k_cache`.
        slot_mapping: ``[T]`` int32 or int64; K and V of a token with a negative slot are dropped.
        num_heads: H.
        q_norm: ``[D]`` weight of the RMS norm of each query head, dtype of qkv; None for no norms.
        k_norm: as `q_norm`, for key heads; both or neither.
        eps: added to the mean square.
        k_scale: ``[1]`` or ``[HK]`` fp32, cached K times this is K; None for a cache as qkv.
        v_scale: as `k_scale`, for V.

    Returns:
        q ``[T, H, D]`` with a dense last dim, dtype of qkv; not a view of `qkv` unless neither norm
        nor rotation was asked for on CPU.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(qkv, positions, cos_sin, k_cache, v_cache, slot_mapping, num_heads)
    _check_norms(qkv, q_norm, k_norm, k_cache.shape[3])
    _check_caches(qkv, k_cache, v_cache, k_scale, v_scale)
    if qkv.is_cuda:
        from pagoda_kernels.kv.triton.write_qkv import write_qkv as write_qkv_triton

        return write_qkv_triton(
            qkv,
            positions,
            cos_sin,
            k_cache,
            v_cache,
            slot_mapping,
            num_heads=num_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=eps,
            k_scale=k_scale,
            v_scale=v_scale,
        )
    num_kv_heads, head_dim = k_cache.shape[2:]
    num_rotated = num_heads + num_kv_heads
    # q and k stay joined: one token costs as much as the calls of torch that it takes.
    qk, v = qkv.view(len(qkv), num_rotated + num_kv_heads, head_dim).split_with_sizes(
        (num_rotated, num_kv_heads), 1
    )
    if q_norm is not None and k_norm is not None:
        qk = torch.rms_norm(qk, (head_dim,), None, eps)
        qk[:, :num_heads].mul_(q_norm)
        qk[:, num_heads:].mul_(k_norm)
    if cos_sin is not None:
        qk = turned(qk, cos_sin.index_select(0, positions).unsqueeze(1), interleaved=False)
    q, k = qk.split_with_sizes((num_heads, num_kv_heads), 1)
    write_kv(k, v, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)
    return q


def _check_caches(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    if (
        k_scale is None
        and v_scale is None
        and k_cache.dtype == v_cache.dtype == qkv.dtype
        and k_cache.get_device() == v_cache.get_device() == qkv.get_device()
    ):
        return
    check_cache_dtype("k_cache", k_cache, "qkv", qkv, "k_scale", k_scale)
    check_cache_dtype("v_cache", v_cache, "qkv", qkv, "v_scale", v_scale)
    if v_cache.dtype != k_cache.dtype:
        raise ValueError(f"v_cache: expected {k_cache.dtype} as k_cache, got {v_cache.dtype}")


def _check(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    num_heads: int,
) -> None:
    if (
        cos_sin is not None
        and k_cache.dim() == 4
        and k_cache.shape == v_cache.shape
        and qkv.dtype in FLOAT_DTYPES
        and num_heads >= 1
        and qkv.shape == (len(positions), (num_heads + 2 * k_cache.shape[2]) * k_cache.shape[3])
        and qkv.stride(1) == 1
        and positions.dtype in (torch.int64, torch.int32)
        and slot_mapping.dtype in (torch.int64, torch.int32)
        and positions.dim() == cos_sin.dim() - 1 == 1
        and slot_mapping.shape == positions.shape
        and cos_sin.dtype == torch.float32
        and cos_sin.shape[1] % 2 == 0
        and cos_sin.shape[1] <= k_cache.shape[3]
        and qkv.get_device() == positions.get_device() == slot_mapping.get_device()
        and qkv.get_device() == cos_sin.get_device()
    ):
        return  # what always holds, asked quickly; below what does not hold gets its message
    check_shape("k_cache", k_cache, (None, None, None, None))
    check_shape("v_cache", v_cache, k_cache.shape)
    num_kv_heads, head_dim = k_cache.shape[2:]
    if num_heads < 1:
        raise ValueError(f"num_heads: expected >= 1, got {num_heads}")
    check_shape("qkv", qkv, (None, (num_heads + 2 * num_kv_heads) * head_dim))
    check_float("qkv", qkv)
    check_last_dim_dense("qkv", qkv)
    for name, index in (("positions", positions), ("slot_mapping", slot_mapping)):
        check_shape(name, index, (len(qkv),))
        check_index(name, index, qkv.device)
    if cos_sin is not None:
        check_cos_sin(cos_sin, head_dim, qkv.device)


def _check_norms(
    qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, head_dim: int
) -> None:
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm, k_norm: expected both or neither, got one")
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            check_shape(name, weight, (head_dim,))
            check_same(name, weight, "qkv", qkv)
