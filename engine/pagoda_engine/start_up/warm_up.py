"""Computes what nobody waits for, so that no user waits for what happens at first use only.

On a GPU kernels are compiled for the facts that a launch depends on: whether a number is 1 or a
multiple of 16, the next power of two, whether KV is split. So every such shape runs once.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.config import EngineConfig
from pagoda_engine.engine import Engine
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.sequence_request import SequenceRequest
from pagoda_engine.start_up.scratch_engine import NUM_OUTPUT_TOKENS, ScratchEngine
from pagoda_engine.step.result import FinishReason

MAX_PROMPT_TOKENS = 16384
"""Longer contexts launch the same kernels."""

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
SAMPLINGS = (
    GREEDY,
    SamplingParams(max_tokens=1, top_k=8, top_p=0.9, min_p=0.01),
    SamplingParams(max_tokens=1, top_n_sigma=1.0, typical_p=0.9, xtc_probability=1.0),
    replace(GREEDY, dry_multiplier=0.8, lz_penalty=0.1),
    replace(GREEDY, repetition_penalty=1.1, frequency_penalty=0.1, presence_penalty=0.1),
    replace(GREEDY, logit_bias={0: 1.0}, stop_token_ids=(0,), min_tokens=NUM_OUTPUT_TOKENS),
    replace(GREEDY, num_logprobs=2),
)
"""Every way of choosing a token."""


def warm_kernels(
    model: LoadedModel,
    config: EngineConfig,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run every kind of step once, on KV of its own: before the KV pool takes the memory.

    Args:
        model: to run.
        config: of the engine to come; ``num_blocks`` does not matter.
        on_progress: called with (lengths of prompts that ran, all lengths).
    """
    limit = min(config.max_model_len, model.decoder.max_positions) - NUM_OUTPUT_TOKENS
    limit = min(limit, MAX_PROMPT_TOKENS if model.device.type == "cuda" else 2)
    if limit < 1:
        return
    num_seqs = 2 * len(SAMPLINGS)
    num_tokens = max(limit + NUM_OUTPUT_TOKENS, num_seqs * (2 + NUM_OUTPUT_TOKENS))
    scratch = ScratchEngine(model, config, num_tokens=num_tokens, num_seqs=num_seqs)
    for sampling in SAMPLINGS:
        scratch.add(1, sampling)
    scratch.step()
    for sampling in SAMPLINGS:  # prefills beside decodes
        scratch.add(min(2, limit), sampling)
    scratch.finish()
    for sampling in SAMPLINGS:  # alone: beside others a row's logits may be of another dtype
        scratch.add(1, sampling)
        scratch.finish()
    lengths = list(prompt_lengths(limit))
    for done, num_tokens in enumerate(lengths):
        on_progress(done, len(lengths))
        scratch.add(num_tokens, GREEDY)
        scratch.finish()


def prompt_lengths(limit: int) -> Iterator[int]:
    """Yield powers of two and odd numbers between them, up to `limit`."""
    num_tokens = 1
    while num_tokens <= limit:
        yield num_tokens
        between = num_tokens + num_tokens // 2 + 1
        if num_tokens > 2 and between <= limit:
            yield between
        num_tokens *= 2


def warm_engine(engine: Engine) -> bool:
    """Take the engine's own queue, graphs and copies into use. Leaves no trace in its blocks.

    Returns:
        Whether the model's logits are finite. Where no sequence fits into one block nobody knows.
    """
    _copy_block(engine.kv_cache, engine.config.num_layer_groups)
    return _run_sequence(engine)


def _copy_block(cache: KvCache, num_layer_groups: int) -> None:
    """Copy a block out and in as transfers and tiers do: whole, and in groups of layers."""
    if cache.part_places is not None:
        cache.write_blocks([0], cache.read_blocks([0]))
        return
    num_groups = min(num_layer_groups, cache.num_layers)
    borders = [cache.num_layers * i // num_groups for i in range(num_groups + 1)]
    sizes = {end - first for first, end in itertools.pairwise(borders)}
    for layers in (None, *map(range, sizes)):
        rows, digests = cache.read_blocks_with_digest([0], layers)
        cache.write_blocks([0], rows, layers, expected=digests)
        cache.write_blocks([0], rows, layers)
        cache.digest_blocks([0], layers)
        cache.copy_blocks(cache.tensor, [0], [0], layers, expected=digests)  # onto itself


def _run_sequence(engine: Engine) -> bool:
    """Compute a short sequence, by which no block gets full; return whether it went well."""
    num_tokens = min(engine.config.block_size, engine.max_model_len)
    if num_tokens <= NUM_OUTPUT_TOKENS:
        return True
    request = SequenceRequest(
        sequence_id="warm-up",
        prompt_token_ids=(0,) * (num_tokens - NUM_OUTPUT_TOKENS),
        block_hashes=(),
        cache_root=bytes(16),
        sampling=replace(GREEDY, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True),
    )
    engine.add(request)
    reasons: list[FinishReason | None] = []
    while engine.has_work():
        reasons += [output.finish_reason for output in engine.step().outputs]
    return FinishReason.ERROR not in reasons
