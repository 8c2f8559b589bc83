"""Stop strings do not depend on where the text was cut, and never leak."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_gateway.text.stop_strings import StopStrings

ALPHABET = "ab\U0001f600é "


def naive(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Character by character: the first end of any stop, the longest stop there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def cut(text: str, borders: list[int]) -> list[str]:
    places = sorted({min(b, len(text)) for b in borders} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@given(
    text=st.text(ALPHABET, max_size=40),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4),
    borders=st.lists(st.integers(0, 40), max_size=20),
    include=st.booleans(),
)
def test_equals_naive_search_for_any_cut(
    text: str, stops: list[str], borders: list[int], include: bool
) -> None:
    matcher = StopStrings(stops, include=include)
    shown = "".join(matcher.push(piece) for piece in cut(text, borders)) + matcher.flush()
    assert (shown, matcher.matched) == naive(text, stops, include=include)


@given(
    text=st.text(ALPHABET, max_size=40),
    stops=st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_never_shows_what_a_stop_string_may_still_take_back(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = ""
    final, _ = naive(text, stops, include=False)
    for char in text:
        shown += matcher.push(char)
        assert final.startswith(shown)


def test_holds_back_only_a_possible_prefix() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the EN") == "the "
    assert matcher.push("d EN") == "ENd "
    assert matcher.flush() == "EN"


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "aXY")])
def test_text_after_the_match_is_dropped(include: bool, shown: str) -> None:
    matcher = StopStrings(["XY"], include=include)
    assert matcher.push("aXYb") == shown
    assert matcher.push("more") == ""
    assert matcher.flush() == ""
    assert matcher.matched == "XY"
