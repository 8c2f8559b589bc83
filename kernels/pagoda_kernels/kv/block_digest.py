"""A 128-bit digest of whole KV blocks that a GPU computes while it copies them.

An integrity check between devices: it finds what wires, memory and forgotten synchronisation do to
a block. It is no cryptographic hash, and no hash for tables under attack.

**Definition.** A block of B bytes, padded with zeros to whole 32-bit words, is read as unsigned
little-endian words ``w_p``. With the odd keys ``K_c(p) = row_c(p // 64) * column_c(p % 64)`` of
`digest_keys`, all modulo 2^64, lanes ``c = 0, 1``::

    lane_c = mix(sum_p w_p * K_c(p) + B * GAMMA)
    digest = lane_0, lane_1 as 16 bytes, little-endian

`mix` is the finaliser of SplitMix64, a bijection. A sum does not depend on the order in which it is
taken, so any number of programs may share a block; the order of the words is in the keys.

**What it promises**, for two blocks of the same size of at most 8 GiB:

- A change within one word (any bit flip) changes both lanes: ``d * K = 0`` has no solution with
  ``0 < |d| < 2^32`` and K odd.
- A swap of two different words changes lane 0: ``(a - b) (K(p) - K(q))`` is divisible by at most
  2^31 from the first factor and 2^32 from the second, since ``K(p) = BASE^p`` with BASE = 3 mod 8
  makes ``v2(BASE^n - 1) = 1`` for odd n and ``2 + v2(n)`` for even n < 2^31.
- Two flipped bits in different words change lane 0. Of unequal rank they add up to an odd multiple
  of the smaller; of equal rank ``+-K(p) +- K(q)`` is divisible by at most 2^32 (differences as
  above; sums are 2, 4 or 6 modulo 8).
- Any other change that does not know the keys goes unseen in lane 1 with probability 2^-64, or at
  most about 2^-33 if it flips nothing but top bits of words; both lanes together see random data in
  place of a block with probability 1 - 2^-128.

Blocks of different size, and a block cut short or padded with zeros, differ by the term in B unless
the sums cancel, which is 2^-64 per lane.

**What it does not promise.** The keys are public and the sums linear, so anybody can construct two
blocks with one digest: it authenticates nobody and must not name content that others may choose.
It says nothing about *which* block arrived: two equal blocks have equal digests wherever they lie.

Reference: Lemire, Kaser, "Strongly universal string hashing is fast" (2014), MULTILINEAR.
"""

import torch

from pagoda_kernels.checks import check_last_dim_dense, check_shape

DIGEST_BYTES = 16


def digest_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """Digest every row.

    Args:
        blocks: ``[N, block_bytes]`` uint8, rows dense, any distance apart.

    Returns:
        ``[N, 16]`` uint8 on the same device. Nothing waits for the device.

    Raises:
        ValueError: not two-dimensional or not uint8.
    """
    check_shape("blocks", blocks, (None, None))
    if blocks.dtype != torch.uint8:
        raise ValueError(f"blocks: expected uint8, got {blocks.dtype}")
    check_last_dim_dense("blocks", blocks)
    if blocks.is_cuda:
        from pagoda_kernels.kv.triton.block_digest import digest_blocks as digest_blocks_triton

        return digest_blocks_triton(blocks)
    from pagoda_kernels.kv.digest_cpu import digest_blocks as digest_blocks_cpu

    return digest_blocks_cpu(blocks)


def as_bytes(blocks: torch.Tensor) -> torch.Tensor:
    """View contiguous blocks ``[N, ...]`` of any dtype as `digest_blocks` takes them."""
    block_bytes = blocks.shape[1:].numel() * blocks.element_size()
    return blocks.view(torch.uint8).view(len(blocks), block_bytes)


def check_digests(name: str, digests: torch.Tensor, num_blocks: int, device: torch.device) -> None:
    """Raise ValueError unless `digests` is what `digest_blocks` returns for N blocks."""
    check_shape(name, digests, (num_blocks, DIGEST_BYTES))
    if digests.dtype != torch.uint8 or digests.device != device:
        raise ValueError(
            f"{name}: expected uint8 on {device}, got {digests.dtype} on {digests.device}"
        )
