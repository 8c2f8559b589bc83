"""Frames in any order and number make one text; each index counts once."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.repetition import DETECTED, REPETITION, Repetition
from pagoda_gateway.sequences.output.sequence import MAX_EARLY_FRAMES, OutputSequence
from pagoda_gateway.text.prompts import Prompt
from pagoda_gateway.text.tokenizer import ModelTokenizer

OPTIONS = OutputOptions(
    num_choices=1, stops=(), include_stop=False, num_logprobs=None, min_tokens=0,
    skip_special_tokens=True, return_token_ids=False, tokens_as_ids=False,
)  # fmt: skip


def make(
    tokenizer: ModelTokenizer, *, sampling: pb.SamplingParams | None = None, **options: Any
) -> OutputSequence:
    return OutputSequence(
        index=0,
        prompt=Prompt((5, 6, 7), None, b"", ()),
        sampling=sampling or pb.SamplingParams(max_tokens=100),
        options=replace(OPTIONS, **options),
        tokenizer=tokenizer,
        on_change=lambda num_unread: None,
        gap_timeout_seconds=60,
        clock=lambda: 1.0,
    )


def frame(first: int, ids: list[int], attempt: int = 0, **fields: Any) -> pb.Frame:
    return pb.Frame(first_index=first, token_ids=ids, attempt=attempt, **fields)


def text_of(sequence: OutputSequence) -> str:
    delta = sequence.read()
    return delta.text if delta else ""


SEARCH = pb.SamplingParams(max_tokens=9, beam_search=pb.BeamSearch(width=2))


def make_search(tokenizer: ModelTokenizer) -> tuple[OutputSequence, OutputSequence]:
    leader, follower = make(tokenizer, sampling=SEARCH), make(tokenizer, sampling=SEARCH)
    follower.follow(leader)
    leader.begin_attempt(1)
    return leader, follower


def hypothesis(ids: list[int]) -> pb.Hypothesis:
    return pb.Hypothesis(token_ids=ids, finish_reason=pb.FINISH_REASON_LENGTH)


@pytest.fixture
def ids(tokenizer: ModelTokenizer) -> list[int]:
    return tokenizer.encode("say \U0001f600 and stop", add_special_tokens=False)


async def test_any_order_and_repetition_gives_the_same_text(
    tokenizer: ModelTokenizer, ids: list[int]
) -> None:
    rng = random.Random(1)
    for _ in range(50):
        sequence = make(tokenizer)
        pieces = []
        for _ in range(30):
            first = rng.randrange(len(ids))
            pieces.append(frame(first, ids[first : first + rng.randint(1, 4)]))
        pieces += [frame(i, [token]) for i, token in enumerate(ids)]
        rng.shuffle(pieces)
        text = ""
        for piece in pieces:
            sequence.take(piece)
            text += text_of(sequence)
        assert sequence.token_ids == ids
        assert text == "say \U0001f600 and stop"
        sequence.close()


async def test_older_and_newer_attempts_are_dropped(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(0, [10]))
    sequence.begin_attempt(1)
    sequence.take(frame(1, [11], attempt=0))
    sequence.take(frame(1, [12], attempt=2))
    assert sequence.token_ids == [10]
    sequence.take(frame(0, [10, 13], attempt=1))
    assert sequence.token_ids == [10, 13]


@pytest.mark.parametrize(
    "contradiction",
    [
        frame(0, [99]),
        frame(0, [99, 12, 13]),
        frame(0, [10, 99, 13]),
        frame(1, [99], finish_reason=pb.FINISH_REASON_STOP),
    ],
)
async def test_another_token_at_a_known_index_loses_the_attempt(
    tokenizer: ModelTokenizer, contradiction: pb.Frame
) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(0, [10, 11]))
    sequence.take(contradiction)
    assert sequence.lost_reason is not None
    assert "99" in sequence.lost_reason
    assert sequence.attention.is_set()
    sequence.take(frame(2, [12], finish_reason=pb.FINISH_REASON_LENGTH))
    assert sequence.token_ids == [10, 11]
    assert not sequence.is_finished

    sequence.begin_attempt(1)
    sequence.take(frame(2, [12], attempt=1, finish_reason=pb.FINISH_REASON_LENGTH))
    assert sequence.token_ids == [10, 11, 12]
    assert sequence.finish_reason == "length"


async def test_an_early_frame_that_turns_out_to_contradict_loses_the_attempt(
    tokenizer: ModelTokenizer,
) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(1, [99, 12]))
    sequence.take(frame(0, [10, 11]))
    assert sequence.token_ids == [10, 11]
    assert sequence.lost_reason is not None
    sequence.close()


async def test_gap_that_stays_open_loses_the_worker(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    sequence._gap_timeout_seconds = 0.0
    sequence.take(frame(2, [10]))
    async with asyncio.timeout(60):
        await sequence.attention.wait()
    assert sequence.lost_reason is not None
    assert "index 0" in sequence.lost_reason


async def test_gap_that_closes_is_no_loss(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(1, [11], finish_reason=pb.FINISH_REASON_LENGTH))
    assert not sequence.is_finished
    sequence.take(frame(0, [10]))
    assert sequence.finish_reason == "length"
    assert sequence._gap_timer is None


async def test_early_frames_are_bounded(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    for index in range(MAX_EARLY_FRAMES + 1):
        sequence.take(frame(index + 1, [10]))
    assert sequence.lost_reason is not None
    assert len(sequence._early) == MAX_EARLY_FRAMES
    sequence.close()


async def test_finish_without_a_token(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(0, [69]))
    sequence.take(frame(1, [], finish_reason=pb.FINISH_REASON_LENGTH))
    delta = sequence.read()
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("a", "length")
    assert sequence.read() is None


async def test_stop_string_across_tokens(tokenizer: ModelTokenizer, ids: list[int]) -> None:
    sequence = make(tokenizer, stops=("\U0001f600 an",))
    for index, token in enumerate(ids):
        sequence.take(frame(index, [token]))
    assert text_of(sequence) == "say "
    assert (sequence.finish_reason, sequence.matched_stop) == ("stop", "\U0001f600 an")
    assert not sequence.is_ended_by_worker  # so the worker must be told
    assert len(sequence.token_ids) < len(ids)  # nothing after the match is billed


async def test_stop_string_is_kept_if_asked_for(tokenizer: ModelTokenizer, ids: list[int]) -> None:
    sequence = make(tokenizer, stops=("and",), include_stop=True)
    sequence.take(frame(0, ids))
    assert text_of(sequence) == "say \U0001f600 and"


async def test_stop_strings_wait_for_min_tokens(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("aaaa", add_special_tokens=False)
    sequence = make(tokenizer, stops=("a",), min_tokens=2)
    sequence.take(frame(0, ids))
    assert text_of(sequence) == "aa"
    assert len(sequence.token_ids) == 3


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
async def test_stop_token_has_no_text(tokenizer: ModelTokenizer, include: bool, text: str) -> None:
    sequence = make(tokenizer, include_stop=include)
    stop = {"finish_reason": pb.FINISH_REASON_STOP, "matched_stop_token_id": 70}
    sequence.take(frame(0, [69, 70], **stop))
    assert text_of(sequence) == text
    assert (sequence.finish_reason, sequence.matched_stop) == ("stop", 70)
    assert sequence.token_ids == [69, 70]


async def test_held_prefix_and_broken_character_come_out_at_the_end(
    tokenizer: ModelTokenizer,
) -> None:
    ids = tokenizer.encode("aEN\U0001f600", add_special_tokens=False)
    sequence = make(tokenizer, stops=("END",))
    sequence.take(frame(0, ids[:3]))
    assert text_of(sequence) == "a"
    sequence.take(frame(3, [ids[3]], finish_reason=pb.FINISH_REASON_LENGTH))
    assert text_of(sequence) == "EN\ufffd"


async def test_abort_by_the_worker_is_a_loss_and_error_is_an_error(
    tokenizer: ModelTokenizer,
) -> None:
    lost, failed = make(tokenizer), make(tokenizer)
    lost.take(frame(0, [10], finish_reason=pb.FINISH_REASON_ABORT))
    failed.take(frame(0, [], finish_reason=pb.FINISH_REASON_ERROR, error="no memory"))
    assert lost.lost_reason
    assert lost.attention.is_set()
    assert failed.error == "no memory"
    assert failed.attention.is_set()


async def test_cached_tokens_and_stages_count_once(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    first = frame(0, [10], cached=pb.CachedTokens(device=2, nvme=9))
    first.stages.prefill_compute_ms = 4
    sequence.take(first)
    sequence.take(first)
    assert sequence.stages["prefill_compute_ms"] == 4
    assert sequence.num_cached_tokens == 3  # never more than the prompt has


async def test_nothing_is_taken_after_the_end(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(0, [10], finish_reason=pb.FINISH_REASON_LENGTH))
    sequence.take(frame(1, [11]))
    assert sequence.token_ids == [10]


def scores(first: int, token_ids: list[int], attempt: int = 0) -> pb.Frame:
    positions = [pb.PositionLogprobs(chosen=pb.TokenLogprob(token_id=i)) for i in token_ids]
    return frame(0, [], attempt, first_prompt_index=first, prompt_logprobs=positions)


def scored_ids(sequence: OutputSequence) -> list[int]:
    assert sequence.prompt_logprobs is not None
    return [position.chosen.token_id for position in sequence.prompt_logprobs.positions]


async def test_logprobs_of_the_prompt_are_taken_once(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer, sampling=pb.SamplingParams(max_tokens=9, num_prompt_logprobs=0))
    sequence.take(scores(1, [6]))
    sequence.begin_attempt(1)
    sequence.take(scores(1, [6, 7], attempt=1))
    sequence.take(scores(1, [6], attempt=1))  # after a preemption
    sequence.take(frame(0, [10], attempt=1))
    assert scored_ids(sequence) == [6, 7]
    assert sequence.token_ids == [10]


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_UNSPECIFIED, pb.FINISH_REASON_LENGTH])
async def test_a_token_without_the_logprobs_of_its_prompt_loses_the_attempt(
    tokenizer: ModelTokenizer, reason: "pb.FinishReason.ValueType"
) -> None:
    sequence = make(tokenizer, sampling=pb.SamplingParams(max_tokens=9, num_prompt_logprobs=0))
    sequence.take(scores(2, [7]))  # the frame before was lost
    sequence.take(frame(0, [] if reason else [10], finish_reason=reason))
    assert sequence.lost_reason == "log probabilities of its prompt never came"
    assert (scored_ids(sequence), sequence.token_ids) == ([], [])


async def test_an_error_needs_no_logprobs(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer, sampling=pb.SamplingParams(max_tokens=9, num_prompt_logprobs=0))
    sequence.take(frame(0, [], finish_reason=pb.FINISH_REASON_ERROR, error="out of memory"))
    assert (sequence.error, sequence.lost_reason) == ("out of memory", None)


async def test_a_search_gives_each_sequence_its_output(
    tokenizer: ModelTokenizer, ids: list[int]
) -> None:
    leader, follower = make_search(tokenizer)
    end = frame(
        0, [], attempt=1, hypotheses=[hypothesis(ids), hypothesis(ids[:3])],
        finish_reason=pb.FINISH_REASON_LENGTH,
    )  # fmt: skip
    leader.take(frame(0, [], attempt=0, hypotheses=end.hypotheses))
    assert not leader.is_finished  # of an attempt that was given up
    leader.take(end)
    leader.take(end)  # again
    assert (leader.token_ids, follower.token_ids) == (ids, ids[:3])
    for sequence in (leader, follower):
        assert sequence.finish_reason == "length"
        assert sequence.attention.is_set()
        assert sequence.is_ended_by_worker


async def test_an_end_for_no_reason_is_none(tokenizer: ModelTokenizer, ids: list[int]) -> None:
    for reason in (pb.FINISH_REASON_ABORT, 77):
        sequence = make(tokenizer)
        sequence.take(frame(0, ids, finish_reason=reason))
        assert str(reason) in (sequence.lost_reason or "")
        assert not sequence.is_finished


@pytest.mark.parametrize("reason", [0, pb.FINISH_REASON_ABORT, 77])
async def test_a_search_whose_outputs_have_not_ended_is_lost(
    tokenizer: ModelTokenizer, ids: list[int], reason: int
) -> None:
    leader, follower = make_search(tokenizer)
    found = [hypothesis(ids), hypothesis(ids)]
    found[1].finish_reason = reason  # type: ignore[assignment]
    end = pb.FINISH_REASON_LENGTH
    leader.take(frame(0, [], attempt=1, hypotheses=found, finish_reason=end))
    assert "has not ended" in (leader.lost_reason or "")
    assert not follower.token_ids


@pytest.mark.parametrize("num_hypotheses", [0, 1, 3])
async def test_a_worker_that_finds_another_number_of_outputs_is_lost(
    tokenizer: ModelTokenizer, ids: list[int], num_hypotheses: int
) -> None:
    """One of an older version knows no search, and sends tokens."""
    leader, follower = make_search(tokenizer)
    tokens = [] if num_hypotheses else ids
    found = [hypothesis(ids)] * num_hypotheses
    leader.take(frame(0, tokens, attempt=1, hypotheses=found))
    assert f"{num_hypotheses} outputs" in (leader.lost_reason or "")
    assert leader.token_ids == follower.token_ids == []


async def test_a_failed_search_is_its_leaders(tokenizer: ModelTokenizer) -> None:
    leader, follower = make_search(tokenizer)
    leader.take(frame(0, [], attempt=1, finish_reason=pb.FINISH_REASON_ERROR, error="broken"))
    assert leader.error == "broken"
    assert not follower.attention.is_set()


async def test_what_was_speculated_is_the_sum_over_attempts(tokenizer: ModelTokenizer) -> None:
    sequence = make(tokenizer)
    sequence.take(frame(1, [11], num_proposed_tokens=7, num_accepted_tokens=2))
    sequence.take(frame(0, [10], num_proposed_tokens=3, num_accepted_tokens=1))
    assert (sequence.num_proposed_tokens, sequence.num_accepted_tokens) == (7, 2)
    sequence.begin_attempt(1)
    sequence.take(frame(2, [12], num_proposed_tokens=50, num_accepted_tokens=50))
    assert (sequence.num_proposed_tokens, sequence.num_accepted_tokens) == (7, 2), "too late"
    sequence.take(frame(2, [12], attempt=1, num_proposed_tokens=4, num_accepted_tokens=3))
    sequence.take(frame(3, [13], attempt=1))
    assert (sequence.num_proposed_tokens, sequence.num_accepted_tokens) == (11, 5)
    sequence.close()


def test_a_repetition_ends_the_output_where_it_is_seen(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("abcabcabcabc", add_special_tokens=False)
    sequence = make(tokenizer, repetition=Repetition(2, 4, 3), stops=("cabx",))
    sequence.take(frame(0, ids[:5]))
    sequence.take(frame(5, ids[5:]))  # a step may bring several
    assert (sequence.finish_reason, sequence.matched_stop) == (REPETITION, DETECTED)
    assert len(sequence.token_ids) == 9
    assert not sequence.is_ended_by_worker
    assert text_of(sequence) == "abcabcabc"  # what the stop string held back comes, too


def test_a_repetition_counts_from_min_tokens_on_and_not_behind_an_end(
    tokenizer: ModelTokenizer,
) -> None:
    ids = tokenizer.encode("aaaa", add_special_tokens=False)
    sequence = make(tokenizer, repetition=Repetition(1, 1, 2), min_tokens=4)
    sequence.take(frame(0, ids[:3]))
    assert not sequence.is_finished
    sequence.take(frame(3, ids[3:], finish_reason=pb.FINISH_REASON_LENGTH))
    assert sequence.finish_reason == "length"
