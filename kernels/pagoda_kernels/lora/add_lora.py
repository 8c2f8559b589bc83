"""Low-rank adapters of a linear layer, another one for every token of a batch if need be.

Knows stacked adapter weights. Knows nothing of adapter names or which are loaded.
"""

import torch

from pagoda_kernels.checks import (
    check_float,
    check_fp32,
    check_index,
    check_last_dim_dense,
    check_same,
    check_shape,
)
from pagoda_kernels.lora import cpu


def add_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    adapters: torch.Tensor,
    ranks: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """``out[t] += scales[l] * b[l, :, :r] @ (a[l, :r] @ x[t])``, ``l = adapters[t], r = ranks[l]``.

    Accumulated in fp32; the shrunk vector and the sum are rounded to the dtype of x.

    Args:
        out: ``[T, N]``, dtype of x, output of the base layer, changed in place; rows dense, so a
            slice of a joined projection will do.
        x: ``[T, K]`` fp32, fp16 or bf16; rows dense.
        a: ``[L, R, K]``, dtype of x, contiguous; rows from ``ranks[l]`` on are never read.
        b: ``[L, N, R]``, dtype of x, contiguous.
        adapters: ``[T]`` int32 in ``[-1, L)``, -1 for no adapter, contiguous.
        ranks: ``[L]`` int32 in ``[0, R]``.
        scales: ``[L]`` fp32, ``alpha / rank`` of every adapter.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    check_shape("x", x, (None, None))
    check_float("x", x)
    check_last_dim_dense("x", x)
    num_tokens, num_k = x.shape
    check_shape("out", out, (num_tokens, None))
    check_last_dim_dense("out", out)
    check_shape("a", a, (None, None, num_k))
    num_adapters, max_rank = a.shape[:2]
    check_shape("b", b, (num_adapters, out.shape[1], max_rank))
    for name, tensor in (("out", out), ("a", a), ("b", b)):
        check_same(name, tensor, "x", x)
    check_shape("adapters", adapters, (num_tokens,))
    check_shape("ranks", ranks, (num_adapters,))
    for name, index in (("adapters", adapters), ("ranks", ranks)):
        check_index(name, index, x.device)
    check_shape("scales", scales, (num_adapters,))
    check_fp32("scales", scales, x.device)
    for name, tensor in (("a", a), ("b", b), ("adapters", adapters)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: expected contiguous, got strides {tensor.stride()}")
    if x.is_cuda:
        from pagoda_kernels.lora.triton import add_lora as add_lora_triton

        add_lora_triton(out, x, a, b, adapters, ranks, scales)
    else:
        cpu.add_lora(out, x, a, b, adapters, ranks, scales)
