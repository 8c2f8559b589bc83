"""Readable twins of what writes, moves and digests KV: one token, block or word at a time."""

import torch

from pagoda_kernels.kv.digest_keys import BASE, GAMMA, MASK, SEED, TILE_WORDS, mix
from pagoda_kernels.norm.reference import rms_norm
from pagoda_kernels.one_byte_dtypes import LARGEST
from pagoda_kernels.rope.reference import apply_rope


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """One token at a time; negative slots are skipped."""
    block_size = k_cache.shape[1]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if scale is not None:
            largest = LARGEST[cache.dtype]
            new = (new.float() * (1 / scale)[:, None]).clamp(-largest, largest)
            new = new.round() if cache.dtype == torch.int8 else new
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                cache[slot // block_size, slot % block_size] = new[token].to(cache.dtype)


def write_latent(
    latent: torch.Tensor, latent_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """One token at a time; negative slots are skipped."""
    block_size = latent_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            latent_cache[slot // block_size, slot % block_size] = latent[token]


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
    """Norm, rotate, write: the separate operators one after another."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    heads = qkv.reshape(len(qkv), -1, head_dim)
    q, k, v = heads.split_with_sizes((num_heads, num_kv_heads, num_kv_heads), 1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    if cos_sin is not None:
        q, k = apply_rope(q, k, positions, cos_sin)
    write_kv(k, v, k_cache, v_cache, slot_mapping, k_scale=k_scale, v_scale=v_scale)
    return q


def gather_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """One block at a time."""
    return torch.stack([kv_cache[:, :, block] for block in block_ids.tolist()])


def scatter_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """One block at a time, in place."""
    for row, block in enumerate(block_ids.tolist()):
        kv_cache[:, :, block] = blocks[row]


def digest_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """One word at a time, in Python's integers."""
    return torch.tensor([list(_digest(bytes(row.tolist()))) for row in blocks], dtype=torch.uint8)


def _digest(block: bytes) -> bytes:
    def drawn(index: int) -> int:
        return mix(SEED + index * GAMMA & MASK) | 1

    sums = [len(block) * GAMMA, len(block) * GAMMA]
    for p in range(-(-len(block) // 4)):
        word = int.from_bytes(block[4 * p : 4 * p + 4], "little")
        sums[0] += word * pow(BASE, p, 1 << 64)
        sums[1] += word * drawn(TILE_WORDS + p // TILE_WORDS) * drawn(p % TILE_WORDS)
    return b"".join(mix(total & MASK).to_bytes(8, "little") for total in sums)
