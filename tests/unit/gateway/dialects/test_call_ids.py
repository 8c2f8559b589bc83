"""Ids of calls, as models take them."""

import re

import pytest

from pagoda_gateway.dialects import Dialect, fitting_call_id, new_call_id

NINE = re.compile(r"[A-Za-z0-9]{9}")


def test_mistral_asks_for_nine_letters_and_digits() -> None:
    assert Dialect.of("[TOOL_CALLS]").call_id_chars == 9
    assert Dialect.of("<tool_call>").call_id_chars is None


def test_new_ids_fit_and_differ() -> None:
    short = {new_call_id("call_", 9) for _ in range(1000)}
    assert len(short) == 1000
    assert all(map(NINE.fullmatch, short))
    assert re.fullmatch(r"toolu_[0-9a-f]{24}", new_call_id("toolu_", None))


@pytest.mark.parametrize("call_id", ["", "call_1", "call-9999", "\u6f22" * 9, "a" * 10, "\ud800"])
def test_other_ids_become_fitting_ones(call_id: str) -> None:
    found = fitting_call_id(call_id, 9)
    assert NINE.fullmatch(found)
    assert fitting_call_id(call_id, 9) == found
    assert fitting_call_id(call_id + "x", 9) != found
    assert fitting_call_id(found, 9) == found
