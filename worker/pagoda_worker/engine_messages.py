"""What is asked of a worker as the engine's values, and what the engine did as frames."""

import functools
import math
import struct
from collections.abc import Iterable, Iterator

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import (
    BeamSearchParams,
    EarlyStopping,
    FinishReason,
    Hypothesis,
    KvSource,
    SamplingParams,
    SequenceOutput,
    SequenceRequest,
    TokenLogprobs,
    TokenMask,
)
from pagoda_runtime.block_hash import HASH_BYTES, split_hashes
from pagoda_worker.errors import RequestFormatError
from pagoda_worker.sequences import CachedTokens, LiveSequence, Stages

MAX_FRAME_LOGPROBS = 1 << 14
"""Tokens with their log probabilities in one frame, of 13 bytes each at most."""

FINISH_REASONS = {
    FinishReason.STOP: generate_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generate_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: generate_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: generate_pb2.FINISH_REASON_ERROR,
    FinishReason.INVALID: generate_pb2.FINISH_REASON_INVALID,
}
_EARLY_STOPPING: dict["generate_pb2.EarlyStopping.ValueType", EarlyStopping] = {
    generate_pb2.EARLY_STOPPING_UNSPECIFIED: False,
    generate_pb2.EARLY_STOPPING_AT_ONCE: True,
    generate_pb2.EARLY_STOPPING_NEVER: "never",
}


def sampling_params(message: generate_pb2.SamplingParams) -> SamplingParams:
    """Return the engine's form. Where 0 cannot be meant (as in top_p) it is "off"."""
    return SamplingParams(
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        temperature=as_decimal(message.temperature),
        top_k=message.top_k,
        top_p=as_decimal(message.top_p) or 1.0,
        min_p=as_decimal(message.min_p),
        repetition_penalty=as_decimal(message.repetition_penalty) or 1.0,
        frequency_penalty=as_decimal(message.frequency_penalty),
        presence_penalty=as_decimal(message.presence_penalty),
        logit_bias={token_id: as_decimal(bias) for token_id, bias in message.logit_bias.items()},
        seed=message.seed,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        num_prompt_logprobs=(
            message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
        ),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprob_token_ids=tuple(message.logprob_token_ids),
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_words=tuple(tuple(word.token_ids) for word in message.bad_words),
        embed=message.embed,
        top_n_sigma=as_decimal(message.top_n_sigma),
        typical_p=as_decimal(message.typical_p) or 1.0,
        xtc_threshold=as_decimal(message.xtc_threshold),
        xtc_probability=as_decimal(message.xtc_probability),
        dry_multiplier=as_decimal(message.dry_multiplier),
        dry_base=as_decimal(message.dry_base) or 1.0,
        dry_allowed_length=message.dry_allowed_length or 1,
        dry_sequence_breakers=_shared(tuple(message.dry_sequence_breakers)),
        lz_penalty=as_decimal(message.lz_penalty),
        beam_search=_beam_search(message.beam_search) if message.HasField("beam_search") else None,
    )


def _beam_search(message: generate_pb2.BeamSearch) -> BeamSearchParams:
    return BeamSearchParams(
        width=message.width,
        length_penalty=as_decimal(message.length_penalty),
        early_stopping=_EARLY_STOPPING.get(message.early_stopping, False),
    )


def sequence_request(
    message: generate_pb2.GenerateRequest,
    *,
    sequence_id: str,
    block_size: int,
    kv_source: KvSource,
    prefill_only: bool,
    token_mask: TokenMask | None,
    first_export_block: int = 0,
    deadline: float = math.inf,
) -> SequenceRequest:
    """Return the engine's form of a request.

    Raises:
        RequestFormatError: hashes that do not fit the prompt.
    """
    num_full_blocks = len(message.prompt_token_ids) // block_size
    try:
        block_hashes = split_hashes(message.block_hashes)
    except ValueError as error:
        raise RequestFormatError(f"block_hashes: {error}") from error
    if len(block_hashes) != num_full_blocks:
        raise RequestFormatError(
            f"{len(block_hashes)} block hashes for {num_full_blocks} full blocks of {block_size} "
            f"tokens ({len(message.prompt_token_ids)} prompt tokens): hash with this block size"
        )
    if len(message.cache_root) != HASH_BYTES:
        raise RequestFormatError(
            f"cache_root has {len(message.cache_root)} bytes, must have {HASH_BYTES}"
        )
    return SequenceRequest(
        sequence_id=sequence_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        block_hashes=block_hashes,
        cache_root=message.cache_root,
        sampling=sampling_params(message.sampling),
        output_token_ids=tuple(message.output_token_ids),
        kv_source=kv_source,
        prefill_only=prefill_only,
        first_export_block=first_export_block,
        token_mask=token_mask,
        priority=message.priority,
        deadline=deadline,
        tenant=message.tenant,
        weight=as_decimal(message.weight) or 1.0,
        adapter=message.adapter,
    )


def frame(sequence: LiveSequence, output: SequenceOutput) -> generate_pb2.Frame:
    """Return new tokens or an embedding; the caller adds cached tokens and stages."""
    message = generate_pb2.Frame(
        request_id=sequence.request_id,
        sequence_index=sequence.sequence_index,
        attempt=sequence.attempt,
        first_index=output.first_index,
        token_ids=output.token_ids,
    )
    if output.num_proposed_tokens:
        message.num_proposed_tokens = output.num_proposed_tokens
        message.num_accepted_tokens = output.num_accepted_tokens
    if output.logprobs:
        message.logprobs.extend(map(position_logprobs, output.logprobs))
    if output.finish_reason is not None:
        message.error = output.error
        message.embedding = output.embedding
        message.hypotheses.extend(map(_hypothesis, output.hypotheses))
        message.finish_reason = FINISH_REASONS[output.finish_reason]
        if output.matched_stop_token_id is not None:
            message.matched_stop_token_id = output.matched_stop_token_id
    return message


def finish_reason_message(
    reason: FinishReason | None,
) -> "generate_pb2.FinishReason.ValueType":
    """Return the wire's form; unspecified: not finished."""
    return generate_pb2.FINISH_REASON_UNSPECIFIED if reason is None else FINISH_REASONS[reason]


def finish_reason(value: "generate_pb2.FinishReason.ValueType") -> FinishReason | None:
    """Return the engine's form; None where nothing, or nothing known, is said."""
    return next((reason for reason, known in FINISH_REASONS.items() if known == value), None)


def _hypothesis(hypothesis: Hypothesis) -> generate_pb2.Hypothesis:
    stop_id = hypothesis.matched_stop_token_id
    reason = FinishReason.LENGTH if stop_id is None else FinishReason.STOP
    return generate_pb2.Hypothesis(
        token_ids=hypothesis.token_ids,
        logprobs=map(position_logprobs, hypothesis.logprobs),
        finish_reason=FINISH_REASONS[reason],
        matched_stop_token_id=stop_id,
        score=hypothesis.score,
    )


def prompt_frames(sequence: LiveSequence, output: SequenceOutput) -> Iterator[generate_pb2.Frame]:
    """Yield the prompt's log probabilities that an output has, in frames small enough to send."""
    logprobs = output.prompt_logprobs
    num = max(1, MAX_FRAME_LOGPROBS // (1 + max(len(position.top) for position in logprobs)))
    for start in range(0, len(logprobs), num):
        yield generate_pb2.Frame(
            request_id=sequence.request_id,
            sequence_index=sequence.sequence_index,
            attempt=sequence.attempt,
            first_index=output.first_index,
            first_prompt_index=output.first_prompt_index + start,
            prompt_logprobs=map(position_logprobs, logprobs[start : start + num]),
        )


def position_logprobs(logprobs: TokenLogprobs) -> generate_pb2.PositionLogprobs:
    """Return the wire's form of one position's log probabilities."""
    return generate_pb2.PositionLogprobs(
        chosen=generate_pb2.TokenLogprob(token_id=logprobs.token_id, logprob=logprobs.logprob),
        top=token_logprobs(logprobs.top),
        rank=logprobs.rank,
    )


def token_logprobs(pairs: Iterable[tuple[int, float]]) -> list[generate_pb2.TokenLogprob]:
    """Return the wire's form of (token id, log probability) pairs."""
    return [generate_pb2.TokenLogprob(token_id=t, logprob=p) for t, p in pairs]


def cached_message(cached: CachedTokens) -> generate_pb2.CachedTokens:
    """Return the wire's form."""
    return generate_pb2.CachedTokens(device=cached.device, cpu=cached.cpu, nvme=cached.nvme)


def prefill_stages(stages: Stages) -> generate_pb2.StageTimes:
    """Return the stages that the side which prefilled reports, on the first frame."""
    return generate_pb2.StageTimes(
        prefill_queue_ms=milliseconds(stages.accepted, stages.reserved),
        kv_fetch_ms=milliseconds(stages.fetch_started, stages.fetched),
        prefill_compute_ms=milliseconds(stages.fetched, stages.first_token),
    )


def decode_stages(stages: Stages, *, is_local_prefill: bool) -> generate_pb2.StageTimes:
    """Return the stages that a decode worker reports, on the last frame.

    A sequence that was prefilled here waited for admission once, and its prefill stages said so.
    """
    queue_ms = 0.0 if is_local_prefill else milliseconds(stages.accepted, stages.reserved)
    return generate_pb2.StageTimes(
        kv_transfer_ms=milliseconds(stages.transfer_started, stages.transferred),
        decode_queue_ms=queue_ms,
        decode_generate_ms=milliseconds(stages.joined, stages.ended),
    )


def milliseconds(start: float, end: float) -> float:
    """Return the time between two stamps; 0 if either was never reached."""
    return max(end - start, 0.0) * 1e3 if start and end else 0.0


@functools.lru_cache(maxsize=64)
def _shared(token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return one tuple for all that are equal: thousands of breakers come with each sequence."""
    return token_ids


def as_decimal(value: float) -> float:
    """Undo float32 on the wire: return the shortest decimal with this float32, e.g. 0.7.

    Both workers and the gateway then agree on the double the client wrote (up to seven digits).
    """
    if not math.isfinite(value) or value == int(value):
        return value
    for digits in range(1, 9):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == struct.pack("<f", value):
            return candidate
    return value
