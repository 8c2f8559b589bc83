"""Accounts of sequences that end before their workers have said all."""

from dataclasses import replace
from typing import Any

import pytest
from support.clocks import Now

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.request import RequestContext, RequestIdentity
from pagoda_gateway.sequences.usage import close_record, made_tokens, prompts_read
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import Prompt
from pagoda_gateway.text.tokenizer import ModelTokenizer

OPTIONS = OutputOptions(
    num_choices=1, stops=(), include_stop=False, num_logprobs=None, min_tokens=0,
    skip_special_tokens=True, return_token_ids=False, tokens_as_ids=False,
)  # fmt: skip


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def sequence(tokenizer: ModelTokenizer, now: Now) -> OutputSequence:
    return sequence_of(tokenizer, now)


def sequence_of(tokenizer: ModelTokenizer, now: Now, **options: Any) -> OutputSequence:
    return OutputSequence(
        index=0,
        prompt=Prompt((5, 6, 7), None, b"", ()),
        sampling=pb.SamplingParams(max_tokens=100),
        options=replace(OPTIONS, **options),
        tokenizer=tokenizer,
        on_change=lambda num_unread: None,
        gap_timeout_seconds=60,
        clock=now,
    )


def closed(sequence: OutputSequence, model: ServedModel, **values: Any) -> UsageClose:
    identity = RequestIdentity("r", "r", "o", "completions", "t", "k", 0.0, 0.0, priority=0)
    context: Any = RequestContext(
        "r", model, 0, 0.0, None, lambda *_: None, lambda: None  # type: ignore[arg-type]
    )  # fmt: skip
    defaults = {"is_prompt_due": True, "is_whole": False, "ttft_seconds": None}
    return close_record(
        identity, context, [sequence], outcome="failed",
        e2e_seconds=0.0, limits_ms=0.0, route_ms=0.0, now=0.0,
        **{**defaults, **values},
    )  # fmt: skip


def take(sequence: OutputSequence, now: Now, **last: Any) -> None:
    """Three tokens a quarter of a second apart, all but the first proposed and accepted."""
    for index in range(3):
        fields = last if index == 2 else {}
        sequence.take(
            pb.Frame(
                first_index=index,
                token_ids=[10 + index],
                num_proposed_tokens=2 * index,
                num_accepted_tokens=index,
                **fields,
            )
        )
        now.seconds += 0.25


def test_no_more_was_accepted_than_delivered(
    sequence: OutputSequence, model: ServedModel, now: Now
) -> None:
    take(sequence, now)
    sequence.note_delivered(1)
    record = closed(sequence, model)
    assert (record.num_output_tokens, record.num_accepted_tokens) == (1, 1)
    assert record.num_proposed_tokens == 4


def test_what_will_be_delivered_is_accepted(
    sequence: OutputSequence, model: ServedModel, now: Now
) -> None:
    take(sequence, now)
    record = closed(sequence, model, is_whole=True)
    assert (record.num_output_tokens, record.num_accepted_tokens) == (3, 2)


def test_a_worker_that_did_not_get_to_say_how_long_it_took(
    sequence: OutputSequence, model: ServedModel, now: Now
) -> None:
    take(sequence, now)
    assert closed(sequence, model).stages.decode_generate_ms == 500


def test_a_worker_says_best_how_long_it_took(
    sequence: OutputSequence, model: ServedModel, now: Now
) -> None:
    reason = pb.FINISH_REASON_LENGTH
    take(sequence, now, finish_reason=reason, stages=pb.StageTimes(decode_generate_ms=7))
    assert closed(sequence, model).stages.decode_generate_ms == 7


def test_what_a_worker_says_is_no_more_than_can_be(
    tokenizer: ModelTokenizer, model: ServedModel, now: Now
) -> None:
    most, nan = 2**32 - 1, float("nan")
    sequence = sequence_of(tokenizer, now)
    sequence.take(
        pb.Frame(
            token_ids=[10],
            num_proposed_tokens=most,
            num_accepted_tokens=most,
            cached=pb.CachedTokens(device=2, cpu=most, nvme=most),
            stages=pb.StageTimes(prefill_queue_ms=nan, decode_queue_ms=-1.0),
        )
    )
    sequence.begin_attempt(1)
    sequence.take(
        pb.Frame(attempt=1, first_index=1, num_proposed_tokens=most, num_accepted_tokens=most)
    )
    record = closed(sequence, model, is_whole=True)
    assert record.num_proposed_tokens == most
    assert record.num_accepted_tokens == 1
    cached = record.cached
    assert (cached.device, cached.cpu, cached.nvme) == (2, 1, 0)  # of three tokens
    assert (record.stages.prefill_queue_ms, record.stages.decode_queue_ms) == (0, 0)


def test_what_came_behind_a_stop_string_was_made_too(tokenizer: ModelTokenizer, now: Now) -> None:
    sequence = sequence_of(tokenizer, now, stops=("b",))
    sequence.take(pb.Frame(token_ids=tokenizer.encode("abcde", add_special_tokens=False)))
    assert len(sequence.token_ids) == 2
    assert made_tokens([sequence]) == 5


def test_a_token_that_comes_again_was_made_once(sequence: OutputSequence, now: Now) -> None:
    take(sequence, now)
    sequence.begin_attempt(1)
    sequence.take(pb.Frame(first_index=1, token_ids=[11, 12, 13], attempt=1))
    sequence.take(pb.Frame(first_index=0, token_ids=[10], attempt=1))
    assert made_tokens([sequence], left={0}) == 4


def test_a_search_that_its_client_leaves_may_have_made_all(sequence: OutputSequence) -> None:
    sequence.is_search = True
    assert made_tokens([sequence], left={0}) == 100
    assert made_tokens([sequence], left={1}) == 0


def test_a_search_that_has_ended_made_what_it_found(sequence: OutputSequence) -> None:
    sequence.is_search = True
    found = pb.Hypothesis(token_ids=[10, 11], finish_reason=pb.FINISH_REASON_LENGTH)
    sequence.take(pb.Frame(finish_reason=pb.FINISH_REASON_LENGTH, hypotheses=[found]))
    assert made_tokens([sequence], left={0}) == 2


def test_a_prompt_is_read_once_a_worker_goes_on_from_it(sequence: OutputSequence, now: Now) -> None:
    assert prompts_read([sequence]) == 0
    take(sequence, now)
    assert prompts_read([sequence]) == 3
