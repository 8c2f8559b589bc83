"""A sequence whose text goes through a guard: frames may be cut, repeated and lost as ever."""

import dataclasses
import itertools
import random
from collections.abc import Callable

import pytest

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda_gateway.safety.output_guard import OutputGuard
from pagoda_gateway.safety.policies.file import RuleSettings
from pagoda_gateway.safety.policies.policy import Rules
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.text.prompts import Prompt
from pagoda_gateway.text.tokenizer import ModelTokenizer

TEXT = "one damn é and two damns, well da"
OPTIONS = OutputOptions(
    num_choices=1, stops=(), include_stop=False, num_logprobs=None, min_tokens=0,
    skip_special_tokens=True, return_token_ids=False, tokens_as_ids=False,
)  # fmt: skip

Make = Callable[..., OutputSequence]


@pytest.fixture
def make(tokenizer: ModelTokenizer) -> Make:
    def make_sequence(action: str, stops: tuple[str, ...] = ()) -> OutputSequence:
        rule = RuleSettings.model_validate({"name": "r", "action": action, "deny": ["damns?"]})
        return OutputSequence(
            index=0,
            prompt=Prompt((5, 6, 7), None, b"", ()),
            sampling=pb.SamplingParams(max_tokens=100),
            options=dataclasses.replace(OPTIONS, stops=stops),
            tokenizer=tokenizer,
            on_change=lambda _: None,
            gap_timeout_seconds=60,
            guard=OutputGuard(Rules([rule], {}), None, lambda *_: None),
        )

    return make_sequence


@pytest.mark.parametrize(
    ("action", "expected", "reason"),
    [
        ("redact", "one [redacted] é and two [redacted], well da", "length"),
        ("block", "one ", "content_filter"),
    ],
)
def test_cuts_repetition_and_failover_change_nothing(
    make: Make, tokenizer: ModelTokenizer, action: str, expected: str, reason: str
) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    for seed in range(60):
        print("seed", seed)
        rng, sequence, text, at, attempt = random.Random(seed), make(action), "", 0, 0
        while not sequence.is_finished:
            if rng.random() < 0.2:
                attempt += 1
                sequence.begin_attempt(attempt)
            first = max(0, at - rng.randrange(3))
            end = min(len(ids), first + rng.randint(1, 6))
            last = end == len(ids)
            sequence.take(
                pb.Frame(
                    first_index=first,
                    token_ids=ids[first:end],
                    attempt=attempt,
                    finish_reason=pb.FINISH_REASON_LENGTH if last else 0,
                )
            )
            at = max(at, end)
            if rng.random() < 0.5 and (delta := sequence.read()):
                text += delta.text
                assert "damn" not in text
        delta = sequence.read()
        text += delta.text if delta else ""
        assert text == expected
        assert sequence.finish_reason == reason
        assert sequence.is_settled
        assert sequence.attention.is_set()
        if action == "block":  # what is billed is what was shown
            assert tokenizer.decode(sequence.token_ids, skip_special_tokens=True) == expected
        else:
            assert sequence.token_ids == ids
        assert sequence.num_shown == len(sequence.token_ids)


def test_a_block_in_the_last_frame_needs_no_cancel(make: Make, tokenizer: ModelTokenizer) -> None:
    sequence = make("block")
    ids = tokenizer.encode("oh damn", add_special_tokens=False)
    sequence.take(pb.Frame(token_ids=ids, finish_reason=pb.FINISH_REASON_LENGTH))
    assert sequence.finish_reason == "content_filter"
    assert sequence.is_ended_by_worker


def test_what_is_held_back_is_not_shown(make: Make, tokenizer: ModelTokenizer) -> None:
    sequence = make("redact")
    texts = ["one ", "da", "mn", " two ", "damn", "s"]
    num_tokens, shown = [], []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        num_tokens.append(len(ids))
        sequence.take(pb.Frame(first_index=len(sequence.token_ids), token_ids=ids))
        sequence.read()
        shown.append(sequence.num_shown)
    # "damn" may become "damns": until something else comes it is held, and "damns" is not.
    ends = list(itertools.accumulate(num_tokens))
    assert shown == [ends[0], ends[0], ends[0], ends[3], ends[3], ends[5]]


@pytest.mark.parametrize("stop", ["o damn é and never", "damn é and two dam!", " é?", "x"])
def test_what_may_be_a_stop_string_is_not_shown_when_a_rule_ends_the_output(
    make: Make, tokenizer: ModelTokenizer, stop: str
) -> None:
    ids = tokenizer.encode("oh so damn é and two damns", add_special_tokens=False)
    sequence = make("block", (stop,))
    for index, token_id in enumerate(ids):
        sequence.take(pb.Frame(first_index=index, token_ids=[token_id]))
        if sequence.is_finished:
            break
    delta = sequence.read()
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("oh so ", "content_filter")
    shown = tokenizer.decode(sequence.token_ids, skip_special_tokens=True)
    following = tokenizer.decode(ids[: len(sequence.token_ids) + 1], skip_special_tokens=True)
    assert len(shown) <= len(delta.text) < len(following)


@pytest.mark.parametrize("action", ["redact", "block"])
def test_shown_tokens_are_those_whose_text_was_read(
    make: Make, tokenizer: ModelTokenizer, action: str
) -> None:
    ids = tokenizer.encode("one da two dam three, and a dammed river", add_special_tokens=False)
    ends = [
        len(tokenizer.decode(ids[:count], skip_special_tokens=True))
        for count in range(len(ids) + 1)
    ]
    sequence, text = make(action), ""
    for index, token_id in enumerate(ids):
        sequence.take(pb.Frame(first_index=index, token_ids=[token_id]))
        delta = sequence.read()
        text += delta.text if delta else ""
        assert ends[sequence.num_shown] <= len(text)
        assert sequence.num_shown == len(ids[: index + 1]) or ends[sequence.num_shown + 1] > len(
            text
        )
    assert sequence.num_shown > len(ids) - 3
