"""The logits of a whole prompt, by the engine's decoder alone."""

from collections.abc import Sequence

import torch

from pagoda_engine import LoadedModel
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_kernels import plan_attention

_BLOCK_SIZE = 8


def prompt_logits(model: LoadedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return ``[T, V]``."""
    shape, count = model.description, len(token_ids)
    layout = shape.kv_layout(_BLOCK_SIZE, model.dtype)
    blocks = list(range(-(-count // _BLOCK_SIZE)))
    plan = plan_attention(
        seqlens_q=[count],
        context_lens=[count],
        block_tables=[blocks],
        block_size=_BLOCK_SIZE,
        device=model.device,
    )
    kv_cache = KvCache(layout, len(blocks), model.device)
    with torch.inference_mode():
        positions = torch.arange(count)
        return model.decoder.forward(torch.tensor(token_ids), positions, plan, kv_cache, None)
