import pytest
from driving.grammar_requests import COLUMNS, KINDS, KindTimes, measure, table
from support.openai_server import openai_server

from pagoda_cli.bench.client import Outcome
from pagoda_cli.endpoint import Endpoint


def outcome(ttft, gaps, num_tokens):
    return Outcome(
        ttft_seconds=ttft,
        e2e_seconds=ttft + sum(gaps),
        num_output_tokens=num_tokens,
        gaps_seconds=gaps,
        counted_by="usage",
    )


def test_forced_tokens_count_per_token_and_not_per_step():
    times = KindTimes()
    times.add(outcome(0.1, [0.02, 0.02], num_tokens=9))
    summary = times.summary()
    assert summary["per_token_ms"]["p50"] == pytest.approx(5.0)
    assert summary["per_step_ms"]["p50"] == pytest.approx(20.0)
    assert summary["ttft_ms"]["p50"] == pytest.approx(100.0)


def test_table_says_what_a_grammar_adds():
    found = {"one": {kind: KindTimes() for kind in KINDS}}
    for kind, ttft, step in zip(KINDS, (0.1, 0.11, 0.15), (0.02, 0.025, 0.03), strict=True):
        found["one"][kind].add(outcome(ttft, [step] * 4, num_tokens=5))
    found["one"]["grammar, cold"].add(Outcome(failure="http_400", message="no such schema"))
    header, *rows = table(found)
    assert header == list(COLUMNS)
    cells = [dict(zip(header, row, strict=True)) for row in rows]
    assert [row["TTFT added ms"] for row in cells] == ["+0.00", "+10.00", "+50.00"]
    assert [row["per step added ms"] for row in cells] == ["+0.00", "+5.00", "+10.00"]
    assert [row["failed"] for row in cells] == ["0/1", "0/1", "1/2"]


def test_a_server_that_refuses_all_is_in_the_table():
    found = {"one": {kind: KindTimes() for kind in KINDS}}
    for kind in KINDS:
        found["one"][kind].add(Outcome(failure="http_400", message="no"))
    assert [row[2] for row in table(found)[1:]] == ["-"] * 3
    assert found["one"]["no grammar"].summary()["failure_examples"] == ["http_400: no"]


def test_endpoints_take_turns_and_only_the_cold_grammars_differ():
    with openai_server() as server:
        endpoints = {
            "ours": Endpoint(f"{server.url}/v1", "k", "echo"),
            "theirs": Endpoint(f"{server.url}/v1", "", ""),
        }
        found = measure(endpoints, repeats=2, seed=3)
    assert {kind: len(times.ttft) for kind, times in found["theirs"].items()} == dict.fromkeys(
        KINDS, 2
    )
    keys = [headers.get("authorization") for headers in server.headers]
    assert keys == ["Bearer k", None] * 9
    schemas = [
        str(body.get("response_format", {}).get("json_schema", {}).get("schema", ""))
        for body in server.bodies[::2]
    ]
    assert [str(body) for body in server.bodies[::2]] == [str(body) for body in server.bodies[1::2]]
    assert schemas[0::3] == [""] * 3
    assert len(set(schemas[1::3])) == 1
    assert len(set(schemas[2::3])) == 3
    assert set(schemas[1::3]).isdisjoint(schemas[2::3])
