"""Penalties of a row's tokens. Reference: `reference.penalise_logits`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from pagoda_kernels.triton.launch import next_power_of_2, on_device_of

BLOCK_V = 4096


@triton.jit(do_not_specialize=["repetition_ptr", "frequency_ptr", "presence_ptr"])
def penalise_kernel(
    logits_ptr,
    counts_ptr,
    prompt_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    out_ptr,
    vocab_size,
    stride_ls,
    stride_cs,
    stride_ps,
    BLOCK_V: tl.constexpr,
):
    """``seen(l) - frequency * n - presence * [n > 0]``; one program per row and tile [BLOCK_V]."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask = offs < vocab_size
    # [BLOCK_V]
    logits = tl.load(logits_ptr + row * stride_ls + offs, mask=mask, other=0.0).to(tl.float32)
    counts = tl.load(counts_ptr + row * stride_cs + offs, mask=mask, other=0).to(tl.float32)
    in_prompt = tl.load(prompt_ptr + row * stride_ps + offs, mask=mask, other=0) != 0
    repetition = tl.load(repetition_ptr + row)
    in_output = counts > 0.0
    repeated = tl.where(logits > 0.0, tl.div_rn(logits, repetition), logits * repetition)
    logits = tl.where(in_prompt | in_output, repeated, logits)
    logits = logits - tl.load(frequency_ptr + row) * counts
    logits = logits - tl.where(in_output, tl.load(presence_ptr + row), 0.0)
    tl.store(out_ptr + row * vocab_size + offs, logits, mask=mask)


def penalise_logits(
    logits: torch.Tensor,
    output_counts: torch.Tensor,
    in_prompt: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Launch over rows and tiles; arguments as the operator."""
    num_rows, vocab_size = logits.shape
    out = torch.empty((num_rows, vocab_size), dtype=torch.float32, device=logits.device)
    if out.numel() == 0:
        return out
    block_v = min(BLOCK_V, next_power_of_2(vocab_size))
    with on_device_of(logits):
        penalise_kernel[(num_rows, triton.cdiv(vocab_size, block_v))](
            logits,
            output_counts,
            in_prompt.view(torch.uint8),
            repetition.contiguous(),
            frequency.contiguous(),
            presence.contiguous(),
            out,
            vocab_size,
            logits.stride(0),
            output_counts.stride(0),
            in_prompt.stride(0),
            BLOCK_V=block_v,
            num_warps=8,
            enable_fp_fusion=False,
        )
    return out
