"""Checks at the engine's door, so that nothing inside meets a value it cannot serve.

Knows requests, limits and what an import says. Changes nothing.
"""

import itertools
import math

from pagoda_engine.cache.layer_groups import LayerGroups
from pagoda_engine.config import SPECULATIONS, EngineConfig
from pagoda_engine.errors import InvalidConfigError, InvalidSequenceError
from pagoda_engine.sampling.repeat_penalties import MAX_DRY_LENGTH
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.sequence_request import KvSource, SequenceRequest

_HASH_BYTES = 16
_MAX_SEED = 2**64
_MAX_TOP_K = 2**31
_MAX_LENGTH_PENALTY = 10.0
_MIN_WEIGHT, _MAX_WEIGHT = 0.01, 100.0
_SEARCHED = SamplingParams(max_tokens=1)  # what a beam search leaves as it is


def check_config(config: EngineConfig) -> None:
    """Raise InvalidConfigError if a limit is out of range."""
    for name in (
        "block_size",
        "num_blocks",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "max_num_waiting",
        "num_layer_groups",
        "num_speculative_tokens",
    ):
        value = getattr(config, name)
        if value < 1:
            raise InvalidConfigError(name, value, "at least 1")
    if config.speculation not in SPECULATIONS:
        raise InvalidConfigError("speculation", config.speculation, " or ".join(SPECULATIONS))
    for name in ("num_threads", "speculation_output_bytes"):
        value = getattr(config, name)
        if value < 0:
            raise InvalidConfigError(name, value, "at least 0")
    sizes = config.graph_batch_sizes
    if sizes is not None and (not sizes or list(sizes) != sorted({*sizes}) or sizes[0] < 1):
        raise InvalidConfigError("graph_batch_sizes", sizes, "ascending numbers, at least 1")


def check_request(
    request: SequenceRequest,
    config: EngineConfig,
    *,
    max_model_len: int,
    vocab_size: int,
    groups: LayerGroups | None = None,
) -> None:
    """Raise InvalidSequenceError if an engine with these limits could never serve the request.

    `groups`: those of its KV's layout.
    """
    num_prompt, num_output = len(request.prompt_token_ids), len(request.output_token_ids)
    if not num_prompt:
        raise InvalidSequenceError("number of prompt tokens", 0, "at least 1")
    if num_prompt + num_output >= max_model_len:
        raise InvalidSequenceError(
            "number of prompt and output tokens",
            num_prompt + num_output,
            f"below max_model_len {max_model_len}",
        )
    for name, ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("output_token_ids", request.output_token_ids),
        ("stop_token_ids", request.sampling.stop_token_ids),
        ("logit_bias", tuple(request.sampling.logit_bias)),
        ("logprob_token_ids", request.sampling.logprob_token_ids),
        ("allowed_token_ids", request.sampling.allowed_token_ids),
        ("dry_sequence_breakers", request.sampling.dry_sequence_breakers),
        ("bad_words", tuple(itertools.chain.from_iterable(request.sampling.bad_words))),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise InvalidSequenceError(f"a token in {name}", wrong, f"in [0, {vocab_size})")
    if not _MIN_WEIGHT <= request.weight <= _MAX_WEIGHT:
        raise InvalidSequenceError("weight", request.weight, f"in [{_MIN_WEIGHT}, {_MAX_WEIGHT}]")
    _check_hashes(request, config)
    check_sampling(request.sampling, vocab_size)
    _check_prompt_results(request)
    _check_search(request, config, vocab_size)
    if num_output >= max(1, request.sampling.max_tokens):
        raise InvalidSequenceError(
            "number of output tokens", num_output, f"below max_tokens {request.sampling.max_tokens}"
        )
    _check_blocks(request, config, max_model_len, groups)


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidSequenceError if a sampling parameter is out of range."""
    finite = math.isfinite
    least_tokens = 0 if params.embed or params.num_prompt_logprobs is not None else 1
    rules = (
        ("max_tokens", params.max_tokens >= least_tokens, f"at least {least_tokens}"),
        ("min_tokens", params.min_tokens >= 0, "at least 0"),
        ("temperature", finite(params.temperature) and params.temperature >= 0, "at least 0"),
        ("top_k", 0 <= params.top_k < _MAX_TOP_K, "in [0, 2**31); 0 is off"),
        ("top_p", 0 < params.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= params.min_p <= 1, "in [0, 1]"),
        ("top_n_sigma", finite(params.top_n_sigma) and params.top_n_sigma >= 0, "at least 0"),
        ("typical_p", 0 < params.typical_p <= 1, "in (0, 1]"),
        ("xtc_threshold", 0 <= params.xtc_threshold <= 1, "in [0, 1]"),
        ("xtc_probability", 0 <= params.xtc_probability <= 1, "in [0, 1]"),
        (
            "dry_multiplier",
            finite(params.dry_multiplier) and params.dry_multiplier >= 0,
            "at least 0",
        ),
        ("dry_base", finite(params.dry_base) and params.dry_base >= 1, "at least 1"),
        (
            "dry_allowed_length",
            1 <= params.dry_allowed_length <= MAX_DRY_LENGTH,
            f"in [1, {MAX_DRY_LENGTH}]",
        ),
        ("lz_penalty", finite(params.lz_penalty) and params.lz_penalty >= 0, "at least 0"),
        (
            "repetition_penalty",
            finite(params.repetition_penalty) and params.repetition_penalty > 0,
            "above 0",
        ),
        ("frequency_penalty", finite(params.frequency_penalty), "finite"),
        ("presence_penalty", finite(params.presence_penalty), "finite"),
        ("logit_bias", all(map(finite, params.logit_bias.values())), "finite for every token"),
        ("seed", 0 <= params.seed < _MAX_SEED, "in [0, 2**64)"),
        (
            "num_logprobs",
            params.num_logprobs is None or 0 <= params.num_logprobs <= vocab_size,
            f"None or in [0, {vocab_size}]",
        ),
        (
            "logprob_token_ids",
            not params.logprob_token_ids or params.num_logprobs is not None,
            "empty without num_logprobs",
        ),
        ("bad_words", all(params.bad_words), "of one token at least, each"),
        (
            "num_prompt_logprobs",
            params.num_prompt_logprobs is None or 0 <= params.num_prompt_logprobs <= vocab_size,
            f"None or in [0, {vocab_size}]",
        ),
        ("embed", not (params.embed and params.max_tokens), "False unless max_tokens is 0"),
    )
    for name, is_met, limit in rules:
        if not is_met:
            raise InvalidSequenceError(name, getattr(params, name), limit)


def check_import(
    sequence: Sequence, num_computed_tokens: int, first_token_id: int | None, vocab_size: int
) -> None:
    """Raise InvalidSequenceError if this cannot be what an import ended with.

    Args:
        sequence: that waits for it.
        num_computed_tokens: see `Engine.import_finished`.
        first_token_id: see `Engine.import_finished`.
        vocab_size: token ids are below it.
    """
    num_tokens = len(sequence.token_ids)
    lowest = sequence.num_cached_tokens if first_token_id is None else num_tokens
    if not lowest <= num_computed_tokens <= num_tokens:
        raise InvalidSequenceError(
            "num_computed_tokens", num_computed_tokens, f"in [{lowest}, {num_tokens}]"
        )
    if first_token_id is None:
        return
    if sequence.request.prefill_only or sequence.beams is not None:
        raise InvalidSequenceError(
            "first_token_id", first_token_id, "None for a prefill_only sequence or a beam search"
        )
    if not 0 <= first_token_id < vocab_size:
        raise InvalidSequenceError("first_token_id", first_token_id, f"in [0, {vocab_size})")


def _check_hashes(request: SequenceRequest, config: EngineConfig) -> None:
    if not config.enable_prefix_caching:
        return
    expected = len(request.prompt_token_ids) // config.block_size
    if len(request.block_hashes) != expected:
        raise InvalidSequenceError(
            "number of block_hashes",
            len(request.block_hashes),
            f"{expected}: one for each full block of {config.block_size} prompt tokens",
        )
    for block_hash in (request.cache_root, *request.block_hashes):
        if len(block_hash) != _HASH_BYTES:
            raise InvalidSequenceError("size of a block hash", len(block_hash), _HASH_BYTES)


def _check_prompt_results(request: SequenceRequest) -> None:
    """What else a prompt gives is only where it is computed, and its output goes on there."""
    if not request.prefill_only and request.kv_source is KvSource.COMPUTE:
        return
    for name, unset in (("num_prompt_logprobs", None), ("embed", False)):
        wanted = getattr(request.sampling, name)
        if wanted is not unset:
            raise InvalidSequenceError(
                name, wanted, f"{unset} where the KV is imported or exported"
            )


def _check_search(request: SequenceRequest, config: EngineConfig, vocab_size: int) -> None:
    """Raise InvalidSequenceError for a beam search that cannot run, or not as it is asked for."""
    params = request.sampling
    search = params.beam_search
    if search is None:
        return
    most = min(config.max_num_seqs, config.max_num_batched_tokens, vocab_size // 2)
    if not 1 <= search.width <= most:
        raise InvalidSequenceError("width of the beam search", search.width, f"in [1, {most}]")
    if not abs(search.length_penalty) <= _MAX_LENGTH_PENALTY:  # a NaN is not
        limit = f"in [-{_MAX_LENGTH_PENALTY}, {_MAX_LENGTH_PENALTY}]"
        raise InvalidSequenceError("length_penalty", search.length_penalty, limit)
    if len(params.stop_token_ids) > vocab_size // 4:
        raise InvalidSequenceError(
            "number of stop_token_ids of a beam search",
            len(params.stop_token_ids),
            f"at most {vocab_size // 4}",
        )
    for name in (
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "dry_multiplier",
        "lz_penalty",
        "logit_bias",
        "logprob_token_ids",
        "num_prompt_logprobs",
        "allowed_token_ids",
        "bad_words",
        "embed",
    ):
        off = getattr(_SEARCHED, name)
        if getattr(params, name) != off:
            raise InvalidSequenceError(name, getattr(params, name), f"{off} in a beam search")
    for name, value, is_met in (
        ("temperature", params.temperature, params.temperature == 0),
        ("token_mask", "a grammar", request.token_mask is None),
        ("prefill_only", True, not request.prefill_only),
        ("number of output tokens", len(request.output_token_ids), not request.output_token_ids),
    ):
        if not is_met:
            raise InvalidSequenceError(name, value, "0, or none, in a beam search")


def _check_blocks(
    request: SequenceRequest, config: EngineConfig, max_model_len: int, groups: LayerGroups | None
) -> None:
    num_prompt, num_output = len(request.prompt_token_ids), len(request.output_token_ids)
    # The last output token is never fed back, so its KV needs no slot.
    longest = min(max_model_len, num_prompt + request.sampling.max_tokens) - 1
    if request.prefill_only or not request.sampling.max_tokens:
        longest = num_prompt + num_output
    num_blocks = -(-longest // config.block_size)
    if request.sampling.beam_search is not None:
        width = request.sampling.beam_search.width
        num_blocks = _blocks_of_search(num_prompt, longest, width, config, groups)
        if num_blocks > config.num_blocks:
            raise InvalidSequenceError(
                f"number of KV blocks that {width} beams of {longest + 1} tokens may need",
                num_blocks,
                f"at most {config.num_blocks}: ask for fewer beams or a lower max_tokens",
            )
        return
    most = config.num_blocks
    if groups is not None:
        most = groups.longest_table(most, config.block_size, config.max_num_batched_tokens)
    if num_blocks > most:
        raise InvalidSequenceError(
            "number of KV blocks needed in the end", num_blocks, f"at most {most}"
        )


def _blocks_of_search(
    num_prompt: int, longest: int, width: int, config: EngineConfig, groups: LayerGroups | None
) -> int:
    if groups is not None:
        return groups.blocks_of_search(
            num_prompt,
            longest,
            width,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
    num_shared = num_prompt // config.block_size  # beams share the prompt's full blocks
    return num_shared + width * (-(-longest // config.block_size) - num_shared)
