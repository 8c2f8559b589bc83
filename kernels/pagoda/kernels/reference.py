"""Readable twins of every operator: the definition the fast paths are tested against.

Loops and fp32 throughout, no speed intended. Results come in the dtype of the input, rounded last,
except where an operator's docstring says it rounds between.
"""

import torch

from pagoda.kernels.attention_batch import AttentionBatch


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """One sequence at a time: collect its KV block by block, mask, softmax."""
    group_size = q.shape[1] // k_cache.shape[2]
    starts = batch.cu_seqlens_q.tolist()
    outputs = []
    for seq, context in enumerate(batch.context_lens.tolist()):
        rows = q[starts[seq] : starts[seq + 1]].float()
        blocks = batch.block_tables[seq, : -(-context // batch.block_size)].long()
        k = k_cache[blocks].flatten(0, 1)[:context].float().repeat_interleave(group_size, 1)
        v = v_cache[blocks].flatten(0, 1)[:context].float().repeat_interleave(group_size, 1)
        scores = torch.einsum("thd,nhd->htn", rows, k) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        query_at = torch.arange(context - len(rows), context, device=q.device)[:, None]
        key_at = torch.arange(context, device=q.device)[None]
        visible = key_at <= query_at
        if sliding_window is not None:
            visible &= key_at > query_at - sliding_window
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("htn,nhd->thd", weights, v))
    return torch.cat(outputs).to(q.dtype)


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """One token at a time; negative slots are skipped."""
    block_size = k_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[token]
            v_cache[slot // block_size, slot % block_size] = v[token]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As LlamaRMSNorm: rounded before the weight is applied."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum in the dtype of x, then `rms_norm`."""
    new_residual = residual + x
    return rms_norm(new_residual, weight, eps), new_residual


def apply_rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers: ``x * cos + rotate_half(x) * sin`` on the first R dims, in fp32."""
    rot_dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions.long()].chunk(2, -1)
    cos, sin = torch.cat([cos, cos], -1)[:, None], torch.cat([sin, sin], -1)[:, None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned, passed = x[..., :rot_dim].float(), x[..., rot_dim:]
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat([-second, first], -1) * sin
        return torch.cat([turned.to(x.dtype), passed], -1)

    return rotate(q), rotate(k)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As LlamaMLP: the gate is rounded before the product."""
    gate, up = gate_up.chunk(2, -1)
    gate = gate.float()
    return (gate / (1 + torch.exp(-gate))).to(up.dtype) * up


def gather_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """One block at a time."""
    return torch.stack([kv_cache[:, :, block] for block in block_ids.tolist()])


def scatter_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """One block at a time, in place."""
    for row, block in enumerate(block_ids.tolist()):
        kv_cache[:, :, block] = blocks[row]
