"""Names of unknown fields: few, short and plain, whatever a client sends."""

import pytest

from pagoda_gateway.http.ignored_fields import ignored_of, note_ignored
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


@pytest.mark.parametrize(
    "name", ["a\r\nset-cookie: b", "a\n", "a,b", "a b", "\u00e9", "\x00", "\x7f", ""]
)
def test_names_that_no_header_can_carry_are_left_out(name: str) -> None:
    assert named(name, "plain") == "plain"
