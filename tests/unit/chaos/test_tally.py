"""When a row of the chaos table passes."""

import pytest
from chaos.cases import CASES, Case
from chaos.streams import Outcome, Prompt, Stream
from chaos.tally import COLUMNS, CaseResult, Row, table


def row(outcome: Outcome, case: Case, gap: float = 0.1) -> Row:
    stream = Stream(Prompt("p", 1))
    stream.end(outcome)
    stream.longest_gap = gap
    return Row(case, "kill it", num_faults=1, streams=[stream], refused_seconds=0.5)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.HUNG, Outcome.WRONG])
def test_a_bad_stream_fails_every_case(outcome: Outcome) -> None:
    for case in CASES.values():
        assert row(outcome, case).faults_found()


def test_only_the_gateway_may_break_connections() -> None:
    assert not row(Outcome.BROKEN, CASES["r5"]).faults_found()
    assert row(Outcome.BROKEN, CASES["r6"]).faults_found()


def test_refusals_are_limited_in_time() -> None:
    assert row(Outcome.REFUSED, CASES["r6"]).faults_found()
    assert not row(Outcome.REFUSED, CASES["r5"]).faults_found()


def test_silence_is_limited() -> None:
    limit = CASES["r1"].max_gap_seconds
    assert not row(Outcome.OK, CASES["r1"], gap=limit - 0.1).faults_found()
    assert row(Outcome.OK, CASES["r1"], gap=limit + 0.1).faults_found()


def test_what_is_still_held_fails_the_case() -> None:
    result = CaseResult(CASES["r1"], {}, rows={"kill it": row(Outcome.OK, CASES["r1"])})
    assert result.as_dict()["passed"]
    result.problems.append("still held: decode-1 pagoda_kv_leases = 1")
    assert not result.as_dict()["passed"]


def test_the_table_has_a_row_for_each_fault() -> None:
    result = CaseResult(CASES["r1"], {}, rows={"kill it": row(Outcome.OK, CASES["r1"])})
    head, _, first = table([result]).splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")] == list(COLUMNS)
    assert first.split("|")[2].strip() == "kill it"
