"""`transformers` on the same weights: how fast a user would be without Pagoda.

A step is its forward and an argmax, without what its `generate` adds around them.
"""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from gpu.harness.rows import Row
from gpu.model.model_subject import ModelSubject

NUM_WARM_STEPS = 3
NUM_STEPS = 12


def transformers_row(subject: ModelSubject, batch: int, context: int) -> Row:
    """Decode with either kind of cache; the faster one counts.

    Args:
        subject: whose weights; its engine is dropped, for the memory.
        batch: sequences.
        context: tokens of each before the first step.
    """
    subject.reset()
    found: Row = {"batch": batch, "context": context}
    for name, make_cache in _caches(subject, context).items():
        found[name] = _decode_ms(subject, make_cache, batch, context)
        gc.collect()
    p50 = min(found[name]["p50_ms"] for name in ("static", "dynamic"))
    return {**found, "p50_ms": p50, "tokens_per_second": batch / p50 * 1e3}


def _caches(subject: ModelSubject, context: int) -> dict[str, Callable[[], Any]]:
    from transformers import DynamicCache, StaticCache

    config = subject.reference.config
    length = context + NUM_WARM_STEPS + NUM_STEPS
    return {
        "dynamic": lambda: DynamicCache(config=config),
        "static": lambda: StaticCache(config=config, max_cache_len=length),
    }


@torch.inference_mode()
def _decode_ms(
    subject: ModelSubject, make_cache: Callable[[], Any], batch: int, context: int
) -> Row:
    model, cache = subject.reference, make_cache()
    tokens = torch.randint(subject.shape.vocab_size, (batch, context), device=subject.device)
    output = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
    seconds = []
    for _ in range(NUM_WARM_STEPS + NUM_STEPS):
        tokens = output.logits[:, -1:].argmax(dim=-1)
        subject.synchronize()
        started = time.perf_counter()
        output = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        subject.synchronize()
        seconds.append(time.perf_counter() - started)
    steady = sorted(seconds[NUM_WARM_STEPS:])
    return {"p50_ms": statistics.median(steady) * 1e3, "worst_ms": steady[-1] * 1e3}
