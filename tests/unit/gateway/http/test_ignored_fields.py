"""Names of unknown fields: few, short and plain, whatever a client sends."""

import pytest

from pagoda_gateway.http.ignored_fields import ignored_of, note_ignored
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.tokens import DetokenizeBody


def named(*fields: str) -> str:
    scope: dict[str, object] = {}
    note_ignored(scope, dict.fromkeys(fields), DetokenizeBody)
    return ignored_of(scope)


def test_names_are_sorted_and_known_fields_are_not_among_them() -> None:
    assert named("zeta", "model", "alpha", "tokens") == "alpha,zeta"
    assert named("model", "tokens") == ""
    assert ignored_of({}) == ""


def test_twenty_names_at_most() -> None:
    assert named(*(f"field{i}" for i in range(1000))).count(",") == 19


def test_long_names_are_cut() -> None:
    assert named("x" * 1000) == "x" * 64
    assert named("\u6f22" * 1000) == "%E6%BC%A2" * 7


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\r\nset-cookie: b", "a%0D%0Aset-cookie:%20b"), ("a\n", "a%0A"), ("a,b", "a%2Cb"),
        ("max tokens", "max%20tokens"), ("gr\u00f6\u00dfe", "gr%C3%B6%C3%9Fe"), ("\x00", "%00"),
        ("\x7f", "%7F"), ("100%", "100%25"), ("a/b[0]", "a/b[0]"),
    ],
)  # fmt: skip
def test_names_that_no_header_can_carry_are_encoded(name: str, shown: str) -> None:
    assert named(name, "zz") == f"{shown},zz"
    assert named(name, "zz").isascii()


def test_a_name_that_is_empty_is_left_out() -> None:
    assert named("", "plain") == "plain"


def test_fields_of_a_bodys_objects_are_named_and_those_in_lists_are_not() -> None:
    body = {
        "messages": [{"role": "user", "content": "hi", "mood": "good"}],
        "stream_options": {"include_usage": True, "include_usge": True},
        "repetition_detection": "wrong itself",
        "response_format": {"type": "text", "shape": 1},  # read by hand
    }
    scope: dict[str, object] = {}
    note_ignored(scope, body, ChatBody)
    assert ignored_of(scope) == "stream_options.include_usge"
    note_ignored(scope := {}, body | {"stream_options": {}, "zeta": None}, ChatBody)
    assert ignored_of(scope) == "zeta"
