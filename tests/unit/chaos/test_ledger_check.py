"""The judge of `chaos.ledger` finds what is lost, doubled or left open."""

from typing import Any

import pytest
from chaos.ledger_check import End, Receivings, judge


def row(output_tokens: int | None, outcome: str | None = "finished") -> dict[str, Any]:
    closed = None if output_tokens is None else 1.0
    return {"outcome": outcome, "output_tokens": output_tokens, "closed_unix_seconds": closed}


def problems(stream: Receivings, found: dict[str, Any] | None, num_published: int = 0) -> list[str]:
    rows = {} if found is None else {"r": found}
    return judge([stream], rows, {"r": num_published}).problems


def test_a_right_ledger() -> None:
    streams = [
        Receivings("a", 5, End.DONE),
        Receivings("b", 2, End.FAILED),
        Receivings("c", 0, End.REFUSED),
        Receivings("d", 3, End.BROKEN),
        Receivings("", 0, End.REFUSED),
    ]
    rows = {
        "a": row(5), "b": row(2, "failed"), "c": row(0, "failed"), "d": row(4, "reconciled"),
        "e": row(1, "reconciled"),
    }  # fmt: skip
    verdict = judge(streams, rows, {"d": 6, "e": 1})
    assert verdict.problems == []
    assert (verdict.num_received, verdict.num_billed) == (7, 7)
    assert (verdict.num_received_broken, verdict.num_billed_broken) == (3, 4)


@pytest.mark.parametrize("found", [None, row(4), row(6), row(None, None), row(0, "lost")])
def test_what_a_finished_stream_got_is_what_it_pays(found: dict[str, Any] | None) -> None:
    assert problems(Receivings("r", 5, End.DONE), found, num_published=6)


@pytest.mark.parametrize(("billed", "is_right"), [(0, False), (1, True), (5, True), (6, False)])
def test_a_broken_stream_pays_what_it_got_but_for_what_was_on_its_way(
    billed: int, is_right: bool
) -> None:
    for end in (End.BROKEN, End.DONE):
        found = problems(Receivings("r", 3, end), row(billed, "reconciled"), num_published=9)
        assert (not found) is is_right


def test_a_row_of_nobody_is_closed_and_published() -> None:
    assert judge([], {"r": row(3)}, {"r": 2}).problems
    assert judge([], {"r": row(None, None)}, {}).problems
    assert not judge([], {"r": row(0, "lost")}, {}).problems
