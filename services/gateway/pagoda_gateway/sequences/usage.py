"""What a request used, as two records: before any token, and after the last."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from pagoda.rpc.v1.generate_pb2 import CachedTokens, StageTimes
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.sequences.output.delivery import Delivery
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.request import RequestContext, RequestIdentity

MAX_UINT32 = 2**32 - 1  # what a field holds: workers may have said more, all in all


class OpenLog(Protocol):
    """Where open records go, and what clients have is noted."""

    def open(self, record: UsageOpen) -> asyncio.Future[None]:
        """Store an open record; the future has a GatewayError if nobody must get anything."""

    def delivery(self, request_id: str, sequence_index: int) -> Delivery | None:
        """Return where to note what a sequence's client has; None: nowhere."""


def first_sequences(sequences: Sequence[OutputSequence]) -> list[OutputSequence]:
    """Return one sequence for each prompt: its first choice."""
    if len(sequences) == 1:  # as nearly always
        return [sequences[0]]
    seen: dict[int, OutputSequence] = {}
    for sequence in sequences:
        seen.setdefault(id(sequence.prompt), sequence)
    return list(seen.values())


def num_prompt_tokens(sequences: Sequence[OutputSequence]) -> int:
    """Return the tokens of all prompts, each counted once whatever n is."""
    return sum([len(sequence.prompt.token_ids) for sequence in first_sequences(sequences)])


def most_output_tokens(sequences: Iterable[OutputSequence]) -> int:
    """Return how many tokens sequences can still come to: those that have ended, no more."""
    return sum(
        len(sequence.token_ids) if sequence.is_finished else sequence.sampling.max_tokens
        for sequence in sequences
    )


def made_tokens(sequences: Sequence[OutputSequence], *, left: Collection[int] = ()) -> int:
    """Return how many output tokens workers have made, as far as is known here.

    `left`: indices of sequences that workers had and that their client has ended. A search says
    nothing before its end, so one of those may have come to all that it asked for: were it taken
    for nothing, whoever wants much for nothing would search.
    """
    return sum(
        sequence.sampling.max_tokens if _is_hidden(sequence, left) else _num_made(sequence)
        for sequence in sequences
    )


def _num_made(sequence: OutputSequence) -> int:
    """Return how many of its tokens came, each index once; those behind a stop string too."""
    return max(sequence.num_brought, len(sequence.token_ids))


def _is_hidden(sequence: OutputSequence, left: Collection[int]) -> bool:
    """Return whether a worker may have been anywhere in a search for this one."""
    leader = sequence.leader or sequence
    return leader.is_search and leader.index in left and not sequence.is_finished


def prompts_read(sequences: Iterable[OutputSequence]) -> int:
    """Return the tokens of prompts that a worker has gone on from, each counted once."""
    return num_prompt_tokens([sequence for sequence in sequences if _num_made(sequence)])


def cached_tokens(sequences: Sequence[OutputSequence]) -> tuple[int, CachedTokens]:
    """Return reused prompt tokens: their number, and by tier. Each prompt counts once."""
    total, tiers = 0, CachedTokens()
    for sequence in first_sequences(sequences):
        num_left = sequence.num_cached_tokens
        total += num_left
        if sequence.cached is not None:
            for tier in ("device", "cpu", "nvme"):
                num_tokens = min(getattr(sequence.cached, tier), num_left)
                setattr(tiers, tier, getattr(tiers, tier) + num_tokens)
                num_left -= num_tokens
    return total, tiers


def open_record(
    identity: RequestIdentity,
    context: RequestContext,
    sequences: Sequence[OutputSequence],
    *,
    gateway_id: str,
    now: float,
) -> UsageOpen:
    """Return what is about to be used, at most."""
    return UsageOpen(
        request_id=identity.request_id,
        object_id=identity.object_id,
        tenant=identity.tenant,
        api_key_id=identity.api_key_id,
        model=context.model.full_name,
        endpoint=identity.endpoint,
        num_prompt_tokens=num_prompt_tokens(sequences),
        max_output_tokens=sum([s.sampling.max_tokens for s in sequences]),
        opened_unix_seconds=now,
        gateway_id=gateway_id,
        service_tier=identity.service_tier,
        price_id=identity.price_id,
        num_choices=_num_choices(sequences),
        client_request_id=identity.client_request_id,
    )


def _num_choices(sequences: Sequence[OutputSequence]) -> int:
    return len(sequences) // len(first_sequences(sequences))


def close_record(
    identity: RequestIdentity,
    context: RequestContext,
    sequences: Sequence[OutputSequence],
    *,
    outcome: str,
    is_prompt_due: bool,
    is_whole: bool,
    ttft_seconds: float | None,
    e2e_seconds: float,
    limits_ms: float,
    route_ms: float,
    now: float,
) -> UsageClose:
    """Return the account of what the client got; without its prompts unless they are due.

    `is_whole`: as it will be once the client has all that there is.
    """
    stages = StageTimes()
    for sequence in sequences:
        for name, milliseconds in sequence.stages.items():
            if milliseconds:  # most stages of most sequences take none
                setattr(stages, name, getattr(stages, name) + milliseconds)
        stages.decode_generate_ms += _unsaid_generate_ms(sequence)
    num_output_tokens = [len(s.token_ids) if is_whole else s.num_delivered for s in sequences]
    return UsageClose(
        request_id=identity.request_id,
        num_prompt_tokens=num_prompt_tokens(sequences) if is_prompt_due else 0,
        cached=cached_tokens(sequences)[1] if is_prompt_due else None,
        num_output_tokens=sum(num_output_tokens),
        finish_reasons=[s.finish_reason or "abort" for s in sequences],
        stages=stages,
        ttft_ms=1000 * (ttft_seconds or 0.0),
        e2e_ms=1000 * e2e_seconds,
        num_attempts=_num_attempts(sequences) if context.worker_ids else 0,
        closed_unix_seconds=now,
        outcome=outcome,
        worker_ids=context.worker_ids,
        gateway_tokenize_ms=identity.tokenize_ms,
        gateway_limits_ms=limits_ms,
        gateway_route_ms=route_ms,
        num_proposed_tokens=min(sum([s.num_proposed_tokens for s in sequences]), MAX_UINT32),
        num_accepted_tokens=sum(  # workers may be ahead of what is delivered
            min(sequence.num_accepted_tokens, num_tokens)
            for sequence, num_tokens in zip(sequences, num_output_tokens, strict=True)
        ),
    )


def _unsaid_generate_ms(sequence: OutputSequence) -> float:
    """Return how long a sequence took whose worker did not get to say it: first to last token."""
    first, last = sequence.first_token_seconds, sequence.last_token_seconds
    if sequence.is_ended_by_worker or sequence.stages["decode_generate_ms"]:
        return 0.0
    return 0.0 if first is None or last is None else 1000 * (last - first)


def _num_attempts(sequences: Sequence[OutputSequence]) -> int:
    return sum(s.attempt + 1 for s in sequences if s.leader is None)
