"""Whatever the patterns, the text and the cuts: no match goes out, and the cuts change nothing."""

import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagoda_gateway.safety.patterns.pattern_set import PatternRule, PatternSet
from pagoda_gateway.safety.patterns.stream_filter import StreamFilter

STAND_IN = "[x]"

# Small alphabets, so that texts and patterns meet; an accent, so that bytes are no characters.
letters = st.sampled_from("abé ")
atoms = st.one_of(
    letters, st.sampled_from(["[ab]", "[^a]", ".", r"\w", "(?:ab)", "(?:a|bé)", "(b|ba)"])
)
counted = st.builds(
    "{}{}".format, atoms, st.sampled_from(["", "", "", "?", "{2}", "{0,2}", "{1,3}"])
)
sequences = st.lists(counted, min_size=1, max_size=4).map("".join)
patterns = st.one_of(
    sequences,
    st.builds("{}|{}".format, sequences, sequences),
    st.builds(r"\b{}".format, sequences),
    st.builds(r"{}\b".format, sequences),
    st.builds("^{}".format, sequences),
    st.builds("{}$".format, sequences),
    st.builds("(?:{}){{1,2}}{}".format, sequences, letters),
)
texts = st.text(alphabet="abé x", max_size=24)


def python_of(pattern: str) -> re.Pattern[str]:
    """The same in another engine: words are ASCII in RE2, `$` is the end alone."""
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def is_usable(pattern: str) -> bool:
    return python_of(pattern).fullmatch("") is None and python_of(pattern).search("") is None


usable = patterns.filter(is_usable)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def filtered(patterns: PatternSet, pieces: list[str], stand_in: str | None) -> str:
    stream = StreamFilter(patterns, lambda _: stand_in)
    return "".join([*(stream.push(piece) for piece in pieces), stream.flush()])


def can_be_empty(pattern: str) -> bool:
    try:
        PatternSet([PatternRule((pattern,))])
    except ValueError:
        return True
    return False


@settings(max_examples=150, deadline=None)
@given(st.lists(usable, min_size=1, max_size=3), texts, st.lists(st.integers(0, 99), max_size=6))
@example(["bad?"], "xbabad", [3])
def test_cuts_change_nothing(denied: list[str], text: str, places: list[int]) -> None:
    denied = [pattern for pattern in denied if not can_be_empty(pattern)]
    if not denied:
        return
    rules = PatternSet([PatternRule(tuple(denied), ignore_case=False)])
    for stand_in in (STAND_IN, None):
        whole = filtered(rules, [text], stand_in)
        assert filtered(rules, cut(text, places), stand_in) == whole
        assert filtered(rules, list(text), stand_in) == whole


@settings(max_examples=150, deadline=None)
@given(usable, texts, st.lists(st.integers(0, 99), max_size=6))
def test_no_match_goes_out(pattern: str, text: str, places: list[int]) -> None:
    if can_be_empty(pattern):
        return
    other = python_of(pattern)
    stream = StreamFilter(PatternSet([PatternRule((pattern,), ignore_case=False)]), lambda _: None)
    out = ""
    for piece in cut(text, places):
        out += stream.push(piece)
        assert text.startswith(out)
        whole = other.search(text)
        assert whole is None or len(out) < whole.end() or out == text[: whole.start()]
    out += stream.flush()
    first = other.search(text)
    assert out == (text if first is None else text[: first.start()])
    assert stream.is_blocked == (first is not None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["ab", "bé", "aab", "a"]), min_size=1, max_size=3), texts)
def test_nothing_is_held_longer_than_it_could_match(words: list[str], text: str) -> None:
    rules = PatternSet([PatternRule(tuple(words), ignore_case=False)])
    stream = StreamFilter(rules, lambda _: None)
    out = ""
    for end in range(1, len(text) + 1):
        out += stream.push(text[end - 1])
        if stream.is_blocked:
            return
        seen = text[:end]
        held = max(
            (n for word in words for n in range(len(word)) if seen.endswith(word[:n])), default=0
        )
        assert out == seen[: end - held]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bad", "[x]"),
        ("not bad", "not bad"),
        ("not bad apple", "not [x]"),  # only what lies within is allowed
        ("so bad, not bad", "so [x], not bad"),
        ("NOT BAD or BAD", "NOT BAD or [x]"),
        ("badly bad", "badly [x]"),
    ],
)
def test_what_is_allowed(text: str, expected: str) -> None:
    rules = PatternSet([PatternRule((r"\bbad\b(?: apple)?",), ("not bad",))])
    assert filtered(rules, [text], STAND_IN) == expected
    assert filtered(rules, list(text), STAND_IN) == expected


def test_what_one_rule_allows_another_may_deny() -> None:
    rules = PatternSet([PatternRule(("bad",), ("not bad at all",)), PatternRule(("not|at",))])
    numbers: list[int] = []

    def replace(number: int) -> str:
        numbers.append(number)
        return STAND_IN

    stream = StreamFilter(rules, replace)
    out = "".join([*map(stream.push, "not bad at all, bad"), stream.flush()])
    assert out == "[x] bad [x] all, [x]"
    assert numbers == [1, 1, 0]


def test_a_match_across_a_pause_is_never_whole() -> None:
    rules = PatternSet([PatternRule(("secret",))])
    blocked = StreamFilter(rules, lambda _: None)
    assert blocked.push("a sec") + blocked.pause() == "a sec"
    assert blocked.push("ret b") == ""
    assert blocked.is_blocked
    redacted = StreamFilter(rules, lambda _: STAND_IN)
    assert redacted.push("a sec") + redacted.pause() == "a sec"
    assert redacted.push("ret b") + redacted.flush() == "[x] b"


def test_a_pause_lets_no_whole_match_go() -> None:
    stream = StreamFilter(
        PatternSet([PatternRule(("se+{1,4}t{1,3}".replace("+", ""),))]), lambda _: None
    )
    assert stream.push("x set") == "x "
    assert stream.pause() == ""
    assert stream.is_blocked


def test_a_long_text_keeps_little() -> None:
    stream = StreamFilter(PatternSet([PatternRule(("abc{1,5}",))]), lambda _: STAND_IN)
    for _ in range(1000):
        stream.push("ab ababab ")
        assert len(stream._text) <= 16


def test_hostile_text_is_linear() -> None:
    stream = StreamFilter(PatternSet([PatternRule(("(?:a{0,50}){0,15}b",))]), lambda _: None)
    for _ in range(200):
        assert "b" not in stream.push("a" * 100)


@pytest.mark.parametrize(
    ("before", "text", "out"),
    [
        ("so for", "bidden", "[x]"),  # what is out already stays
        ("forbid", "den, forbidden", "[x], [x]"),
        ("forbidden ", "x", "x"),  # was the prompt's alone
        ("forbidden forbi", "dden", "[x]"),
        ("x", "y forbid", "y forbid"),
        ("no for", "bidden forbidden", "bidden [x]"),  # allowed
        ("x" * 5000 + "for", "bidden", "[x]"),
        ("", "forbidden", "[x]"),
        ("caf\u00e9 caf", "\u00e9", "[x]"),
        ("a", "ab", "ab"),  # of ^ab it is no beginning
    ],
)
def test_a_match_over_the_seam_with_what_is_out(before: str, text: str, out: str) -> None:
    made = PatternSet([PatternRule(("forbidden", "caf\u00e9", "^ab"), ("no forbidden",))])
    for pieces in ([text], list(text)):
        stream = StreamFilter(made, lambda _: STAND_IN)
        stream.go_on_from(before)
        assert "".join([*map(stream.push, pieces), stream.flush()]) == out
        assert stream.num_held == 0


@settings(max_examples=150, deadline=None)
@given(usable, texts, texts, st.lists(st.integers(0, 99), max_size=4))
def test_cuts_behind_what_is_out_change_nothing(
    pattern: str, before: str, text: str, places: list[int]
) -> None:
    if can_be_empty(pattern):
        return
    made = PatternSet([PatternRule((pattern,))])
    found = []
    for pieces in ([text], cut(text, places)):
        stream = StreamFilter(made, lambda _: STAND_IN)
        stream.go_on_from(before)
        found.append("".join([*map(stream.push, pieces), stream.flush()]))
    assert found[0] == found[1]
