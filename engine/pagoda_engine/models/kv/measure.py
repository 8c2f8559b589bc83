"""Scales for caches in one byte: the checkpoint's, or measured on KV that the model computes.

Knows the decoder's forward. Knows no engine.
"""

import logging
import math

import torch

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models.attention import Attention
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.kv.scales import KvScales, digest_scales
from pagoda_kernels import plan_attention
from pagoda_kernels.one_byte_dtypes import LARGEST

NUM_TOKENS = 256
BLOCK_SIZE = 16
HEADROOM = 1.5
"""The largest number that is cached, in terms of the largest that was seen."""
STEPS_PER_DOUBLING = 4
"""Scales are powers of two, in so many steps each, so that last bits of sums make no difference."""

logger = logging.getLogger(__name__)


def settle_scales(decoder: Decoder, dtype: torch.dtype, device: torch.device) -> str:
    """Settle the scales of all layers, and return what tells them from others.

    Those that the checkpoint lacks are 1 for e4m3, whose numbers reach from 2 ** -9 to 448, and
    measured for int8.

    Args:
        decoder: built for this dtype.
        dtype: of the cache.
        device: of the decoder.

    Returns:
        For `KvLayout`; empty for a cache that has no scales.
    """
    if dtype not in LARGEST:
        return ""
    attentions = [decoder.layers[layer].attention for layer in decoder.description.kv_layers]
    scales = [a.kv_scales for a in attentions if isinstance(a, Attention) and a.kv_scales]
    assert len(scales) == len(attentions), "latents are not cached in one byte"
    num_stored = sum(each.is_stored for each in scales)
    if dtype is torch.int8 and num_stored < len(scales):
        _measure(decoder, scales, dtype, device)
    logger.info(
        "KV is cached as %s, with scales of the checkpoint in %d of %d layers",
        str(dtype).removeprefix("torch."),
        num_stored,
        len(scales),
    )
    return digest_scales(scales)


@torch.inference_mode()
def _measure(
    decoder: Decoder, scales: list[KvScales], dtype: torch.dtype, device: torch.device
) -> None:
    """Set scales that are not stored by what the layers compute of NUM_TOKENS fixed tokens."""
    description = decoder.description
    num_tokens = min(NUM_TOKENS, decoder.max_positions)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    kv_cache = KvCache(description.kv_layout(BLOCK_SIZE, decoder.dtype), num_blocks, device)
    batch = plan_attention(
        seqlens_q=[num_tokens],
        context_lens=[num_tokens],
        block_tables=[list(range(num_blocks))],
        block_size=BLOCK_SIZE,
        device=device,
    )
    positions = torch.arange(num_tokens, device=device)
    # Spread over the vocabulary by a prime: no generator, whose numbers change with torch.
    token_ids = positions * 2654435761 % description.vocab_size
    no_rows = torch.empty(0, dtype=torch.int64, device=device)
    decoder.hidden(token_ids, positions, batch, kv_cache, no_rows)
    for i, each in enumerate(scales):
        if not each.is_stored:
            for scale, plane in zip((each.k, each.v), kv_cache.layer(i), strict=True):
                seen = plane.float().abs().amax((0, 1, 3)).tolist()
                scale.copy_(torch.tensor([_scale(x, LARGEST[dtype]) for x in seen]))


def _scale(largest: float, largest_code: float) -> float:
    """Return the scale of a head; 1 if it has cached nothing but zeros, or no numbers."""
    if not 0 < largest < math.inf:
        return 1.0
    steps = math.ceil(math.log2(largest * HEADROOM / largest_code) * STEPS_PER_DOUBLING)
    return float(2 ** (steps / STEPS_PER_DOUBLING))
