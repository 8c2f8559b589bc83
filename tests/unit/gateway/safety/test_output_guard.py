"""Outputs of several parts through a guard: nothing denied goes out, wherever it is cut."""

import asyncio
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.output_parts import PlainCall, cut, parts_of, reading

from pagoda_gateway.dialects import (
    CallArguments,
    CallStart,
    Dialect,
    OutputParser,
    Part,
    Tool,
    are_whole,
)
from pagoda_gateway.dialects.text_calls import TextCalls
from pagoda_gateway.errors import UnavailableError
from pagoda_gateway.safety.moderators.base import Judgement, ModeratorError, NoAnswerError
from pagoda_gateway.safety.moderators.guarded import GuardedModerator
from pagoda_gateway.safety.output_guard import OutputGuard
from pagoda_gateway.safety.policies.file import HttpModeratorSettings, RuleSettings
from pagoda_gateway.safety.policies.policy import Rules

Noted = list[tuple[str, str]]


def parser() -> OutputParser:
    dialect = Dialect.of("<think></think> <tool_call>", "hermes")
    return dialect.parser([Tool("find")])


def rules(action: str, *denied: str, **fields: Any) -> Rules:
    settings = RuleSettings.model_validate(
        {"name": "r", "action": action, "deny": list(denied), **fields}
    )
    return Rules([settings], {})


def through(
    made: Rules,
    pieces: Sequence[str],
    noted: Noted | None = None,
    reads: OutputParser | None = None,
) -> list[Part]:
    """Return the parts that a serializer would see; `reads`: the parser."""
    found: Noted = [] if noted is None else noted
    guard = OutputGuard(made, reads or parser(), lambda rule, name: found.append((rule, name)))

    class Pushing:
        has_calls = False

        def push(self, text: str) -> list[Part]:
            shown = guard.push(text)
            parts = guard.parser.push(shown)
            assert bool(parts) == bool(shown)
            return parts

        def flush(self) -> list[Part]:
            guard.flush()
            return guard.parser.flush()

    return parts_of(Pushing(), pieces)


def call(arguments: Any) -> str:
    text = json.dumps({"name": "find", "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


words = st.lists(st.sampled_from(["bad", "ba", "d", "b", " ", "ad", "x", "é"]), max_size=6).map(
    "".join
)
outputs = st.builds(
    "{}{}".format,
    st.one_of(st.just(""), words.map("<think>{}</think>".format)),
    st.lists(st.one_of(words, words.map(lambda text: call({"q": text}))), max_size=5).map("".join),
)


@settings(max_examples=150, deadline=None)
@given(outputs, st.lists(st.integers(0, 200), max_size=8), st.sampled_from(["block", "redact"]))
def test_nothing_denied_goes_out(output: str, places: list[int], action: str) -> None:
    made = rules(action, "bad")
    whole = through(made, [output])
    assert through(made, cut(output, places)) == whole
    assert through(made, list(output)) == whole
    content, thought, calls = reading(whole)
    for text in (content, thought, *(arguments for _, arguments in calls)):
        assert "bad" not in text
    plain_content, plain_thought, plain_calls = reading(parts_of(parser(), [output]))
    if action == "redact":
        assert thought == plain_thought.replace("bad", "[redacted]")
        assert [arguments for _, arguments in calls] == [
            arguments.replace("bad", "[redacted]") for _, arguments in plain_calls
        ]
        if "<tool_call>" not in output:
            assert content == plain_content.replace("bad", "[redacted]")
    if not re.search("bad", f"{plain_content} {plain_thought} {plain_calls}"):
        assert (content, thought, calls) == (plain_content, plain_thought, plain_calls)


def test_a_match_that_a_call_interrupts() -> None:
    output = "so ba" + call({}) + "d, yes"
    assert reading(through(rules("block", "bad"), [output])) == ("so ba", "", [("find", "{}")])
    content, _, calls = reading(through(rules("redact", "bad"), list(output)))
    assert (content, calls) == ("so ba[redacted], yes", [("find", "{}")])


def test_an_escape_in_arguments_hides_nothing() -> None:
    output = call({}).replace("{}", '{"q": "b\\u0061d \\u00e9 \\" \\u0022"}')
    _, _, [(_, arguments)] = reading(through(rules("redact", "bad"), list(output)))
    assert json.loads(arguments) == {"q": '[redacted] é " "'}


def text_parser() -> OutputParser:
    return TextCalls(parser(), ["find"])


@pytest.mark.parametrize("action", ["flag", "redact", "block"])
def test_a_text_that_a_call_takes_is_no_json(action: str) -> None:
    output = "Look: " + call({"input": 'x\\u0041y "\n/'})
    plain = parts_of(text_parser(), list(output))
    found = through(rules(action, "bad"), list(output), reads=text_parser())
    assert found[:2] == plain[:2]
    assert isinstance(found[1], CallStart)
    assert found[1].takes_text
    assert reading(found) == reading(plain) == ("Look: ", "", [("find", 'x\\u0041y "\n/')])


@pytest.mark.parametrize(("action", "text"), [("redact", "so [redacted]!"), ("block", "so ")])
def test_how_a_model_writes_a_text_does_not_go_out(action: str, text: str) -> None:
    guard = OutputGuard(rules(action, "bad"), text_parser(), lambda *_: None)
    for piece in call({"input": "so bad!"}):
        guard.push(piece)
    guard.flush()
    found = guard.read()
    assert reading(found) == ("", "", [("find", text)])
    assert "bad" not in repr(found)
    written = [part.json for part in found if isinstance(part, CallArguments)]
    assert are_whole("".join(written)) == (action == "redact")


def test_a_name_that_is_denied_is_no_call() -> None:
    noted: Noted = []
    made = rules("block", "^find$")
    assert reading(through(made, ["Look: ", call({"q": 1})], noted)) == ("Look: ", "", [])
    assert noted == [("r", "block")]


def test_marks_are_no_text() -> None:
    output = "Look:" + call({"q": "x"})
    assert through(rules("block", "tool_call", "name"), [output]) == parts_of(parser(), [output])


def test_a_flag_changes_nothing() -> None:
    noted: Noted = []
    output = "a bad thing, bad" + call({"q": "bad"})
    assert through(rules("flag", "bad"), list(output), noted) == parts_of(parser(), [output])
    assert noted == [("r", "flag")] * 2  # once for each text


def test_a_milder_rule_hides_no_other() -> None:
    settings = [
        {"name": "flag", "action": "flag", "deny": ["a.{0,20}z"]},
        {"name": "redact", "action": "redact", "deny": ["so bad a"]},
        {"name": "block", "action": "block", "deny": ["bad"]},
    ]
    made = Rules([RuleSettings.model_validate(values) for values in settings], {})
    noted: Noted = []
    assert reading(through(made, list("a so bad a z"), noted))[0] == "a so "
    assert ("block", "block") in noted


class Judge:
    """Refuses texts with "bad"; waits for `gate`."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.texts: list[str] = []

    async def judge(self, texts: Sequence[str]) -> list[Judgement]:
        self.texts += texts
        await self.gate.wait()
        if any("silent" in text for text in texts):
            raise NoAnswerError("it says nothing")
        if any("fail" in text for text in texts):
            raise ModeratorError("it cannot")
        return [Judgement({"evil": float("bad" in text)}) for text in texts]

    async def close(self) -> None:
        pass


def judged(window: int = 20, overlap: int = 5, **more: Any) -> tuple[Rules, Judge]:
    sizes = {"window_chars": window, "overlap_chars": overlap}
    settings = HttpModeratorSettings.model_validate(
        {"kind": "http", "url": "http://nowhere", **sizes, **more}
    )
    moderator, judge = GuardedModerator("m", settings), Judge()
    moderator._moderator = judge
    rule = RuleSettings.model_validate(
        {"name": "r", "action": "block", "moderator": "m", "thresholds": {"evil": 0.5}}
    )
    return Rules([rule], {"m": moderator}), judge


async def test_nothing_goes_out_before_it_is_judged() -> None:
    made, judge = judged()
    guard = OutputGuard(made, None, lambda *_: None)
    shown: list[str] = []
    judge.gate.clear()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(guard.run(lambda: shown.append(guard.shown())))
        for _ in range(4):
            assert guard.push("12345") == ""
        assert guard.is_pending
        while not judge.texts:  # noqa: ASYNC110  (its task does it)
            await asyncio.sleep(0)
        assert shown == []
        assert (guard.num_taken, guard.num_shown) == (20, 0)
        judge.gate.set()
        while not shown:  # noqa: ASYNC110  (its task does it)
            await asyncio.sleep(0)
        assert shown == ["12345" * 3]
        assert guard.num_shown == 15
        assert guard.flush() == ""
        await running
    assert shown == ["12345" * 3, "12345"]
    assert guard.num_shown == 20
    assert not guard.is_pending


async def test_nobody_is_asked_or_told_of_what_is_behind_a_refusal() -> None:
    moderators, judges, noted = dict[str, GuardedModerator](), dict[str, Judge](), Noted()
    for name in "ab":
        made, judges[name] = judged()
        moderators[name] = made.moderated[0].moderator
        moderators[name].name = name
    fields = {"thresholds": {"evil": 0.5}}
    both = Rules(
        [
            RuleSettings.model_validate({"name": n, "action": action, "moderator": m, **fields})
            for n, action, m in (("1", "flag", "a"), ("2", "block", "a"), ("3", "block", "b"))
        ],
        moderators,
    )
    refused = await both.first_refused(["x", "bad", "y", "bad"], lambda *n: noted.append(n))
    assert refused == (1, "2")
    assert noted == [("1", "flag"), ("2", "block")]
    assert judges["b"].texts == ["x"]
    assert await both.first_refused(["bad"], lambda *_: None) == (0, "2")
    assert judges["b"].texts == ["x"]
    assert await both.first_refused(["x", "y"], lambda *_: None) is None


@pytest.mark.parametrize("on_failure", ["open", "closed"])
async def test_what_cannot_be_judged_behind_a_refusal_spoils_nothing(on_failure: str) -> None:
    made, _ = judged(on_failure=on_failure)
    assert await made.first_refused(["x", "bad", "fail"], lambda *_: None) == (1, "r")
    windows = ["x", "fail", "bad"]
    if on_failure == "open":
        assert await made.first_refused(windows, lambda *_: None) == (2, "r")
    else:
        with pytest.raises(UnavailableError, match="cannot judge"):
            await made.first_refused(windows, lambda *_: None)


@pytest.mark.parametrize("on_failure", ["open", "closed"])
async def test_who_does_not_answer_is_asked_once(on_failure: str) -> None:
    """Each further look would take as long as it may."""
    made, judge = judged(on_failure=on_failure)
    asking = made.first_refused(["x", "silent", "y"], lambda *_: None)
    if on_failure == "open":
        assert await asking is None
    else:
        with pytest.raises(UnavailableError, match="says nothing"):
            await asking
    assert judge.texts == ["x", "silent", "y"]


async def judged_output(
    output: str, places: list[int], yields: list[int]
) -> tuple[tuple[str, str, list[PlainCall]], int]:
    """Return what goes out where moderators have so many turns of the loop between the pieces."""
    made, judge = judged(window=16, overlap=9)
    guard, shown = OutputGuard(made, parser(), lambda *_: None), list[Part]()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(guard.run(lambda: shown.extend(guard.parser.push(""))))
        for piece, num_yields in zip(cut(output, places), itertools.cycle(yields), strict=False):
            guard.push(piece)
            for _ in range(num_yields):
                await asyncio.sleep(0)
        guard.flush()
    assert guard.is_blocked == any("bad" in text for text in judge.texts)
    return reading(shown), guard.num_shown


@settings(max_examples=150, deadline=None)
@given(
    outputs,
    st.lists(st.integers(0, 200), max_size=12),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
)
async def test_what_goes_out_does_not_depend_on_when_it_comes_or_is_judged(
    output: str, places: list[int], yields: list[int]
) -> None:
    at_once = await judged_output(output, [], [0])
    assert await judged_output(output, places, yields) == at_once


@pytest.mark.parametrize(
    "pieces", [["x" * 13, "b", "ad", "x" * 40], [*("x" * 13 + "bad" + "x" * 40)]]
)
async def test_what_a_moderator_refuses_never_goes_out(pieces: list[str]) -> None:
    made, _ = judged()
    guard = OutputGuard(made, None, lambda *_: None)
    shown: list[str] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(guard.run(lambda: shown.append(guard.shown())))
        for piece in pieces:
            shown.append(guard.push(piece))
            await asyncio.sleep(0)
        shown.append(guard.flush())
    assert guard.is_blocked
    assert not guard.is_pending
    assert "bad" not in "".join(shown)
    assert len("".join(shown)) < 16


@settings(deadline=None)
@given(st.text(alphabet="xb", max_size=80), st.integers(16, 40), st.integers(0, 15))
def test_windows_miss_nothing_that_fits_the_overlap(text: str, window: int, overlap: int) -> None:
    settings = HttpModeratorSettings.model_validate(
        {"kind": "http", "url": "http://x", "window_chars": window, "overlap_chars": overlap}
    )
    windows = GuardedModerator("m", settings).windows(text)
    assert all(len(piece) <= window for piece in windows)
    for start in range(len(text)):
        piece = text[start : start + overlap + 1]
        assert any(piece in one for one in windows)


@settings(max_examples=150, deadline=None)
@given(
    outputs,
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from(["bad", "find", "b", "x"]),
)
def test_what_a_block_keeps_back_is_never_shown(
    output: str, places: list[int], denied: str
) -> None:
    guard, shown = OutputGuard(rules("block", denied), parser(), lambda *_: None), list[Part]()
    for piece in cut(output, places):
        guard.push(piece)
        shown += guard.parser.push("")
    guard.flush()
    shown += guard.parser.flush()
    num_chars = sum(
        len(part.name) if isinstance(part, CallStart) else len(part.text) for part in shown
    )
    assert guard.num_shown == num_chars


@settings(max_examples=100, deadline=None)
@given(outputs, st.lists(st.integers(0, 200), max_size=8), st.sampled_from(["flag", "redact"]))
def test_all_that_is_taken_is_shown_in_the_end(output: str, places: list[int], action: str) -> None:
    guard, reader = OutputGuard(rules(action, "bad"), parser(), lambda *_: None), parser()
    for piece in cut(output, places):
        guard.push(piece)
        assert 0 <= guard.num_shown <= guard.num_taken
        assert guard.num_taken - guard.num_shown <= (0 if action == "flag" else len("bad"))
    guard.flush()
    assert guard.num_shown == guard.num_taken
    content, thought, calls = reading(parts_of(reader, [output]))
    names = sum(len(name) for name, _ in calls)
    assert guard.num_taken >= names + len(content) + len(thought)
