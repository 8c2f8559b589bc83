"""Escapes in JSON text: written out wherever they may be, wherever the text is cut."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_gateway.safety.json_escapes import WrittenOut, all_written_out


def written_out(pieces: list[str]) -> str:
    reader = WrittenOut()
    return "".join([*map(reader.push, pieces), reader.flush()])


@settings(deadline=None)
@given(
    st.text(alphabet='ab"\\\n\x01é\U0001f600u0', max_size=12),
    st.lists(st.integers(0, 99), max_size=5),
)
def test_the_value_is_the_same_and_no_letter_is_escaped(value: str, places: list[int]) -> None:
    escaped = (
        '"'
        + "".join(
            "".join(f"\\u{unit:04x}" for unit in _units(char)) if char != "u" else char
            for char in value
        )
        + '"'
    )
    for text in (escaped, json.dumps(value), json.dumps(value, ensure_ascii=False)):
        bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
        out = written_out([text[a:b] for a, b in itertools.pairwise(bounds)])
        assert json.loads(out) == value
        assert out == written_out([text])
        for letter in "abé\U0001f6000":
            assert out.count(letter) >= value.count(letter)


def test_what_is_no_escape_stays() -> None:
    for text in (
        "\\\\u0061",
        "\\u00",
        "\\ud83d",
        "\\ud83dx",
        "\\",
        "\\udc00",
        "\\u0022",
        "\\uzzzz",
    ):
        assert written_out(list(text)) == text
    assert written_out(["\\\\\\u0061"]) == "\\\\a"
    assert written_out(list("\\\\\\/\\\\/")) == "\\\\/\\\\/"


def _units(char: str) -> list[int]:
    raw = char.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


@pytest.mark.parametrize(
    "value", ['a\n"b"\\n', "\b\f\t\r\x01 \u00e9", "\\u0041 \\\\", "/", "\U0001f600"]
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_all_that_a_text_says_is_written_out(value: str, is_ascii: bool) -> None:
    assert all_written_out(json.dumps(value, ensure_ascii=is_ascii)) == f'"{value}"'
    assert all_written_out('"\\ud800 \\/"') == '"\\ud800 /"'
