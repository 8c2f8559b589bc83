"""Why prompts missed on the real system: what prefill counted as cached, and what was expected."""

import concurrent.futures
import json
import os
import subprocess
from typing import Any

import pytest
from support.stack import PAGODA, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BLOCK = 16
RULES = (
    "You answer questions about plays. Name the act and the scene, quote at most two lines, and "
    "say so when you are not sure. Never make up a line, never judge the author, and be brief."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look something up in the {name} of all plays that are known here.",
            "parameters": {"type": "object", "properties": {"play": {"type": "string"}}},
        },
    }
    for name in ("acts", "scenes", "actors")
]


def ask(stack: Stack, system: str, question: str, **body: Any) -> dict[str, Any]:
    """Return the receipt of a chat."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    with stack.http() as http:
        values = {"model": stack.model, "messages": messages, "max_tokens": 4, **body}
        answer = http.post("/v1/chat/completions", json=values)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = http.get(f"/v1/receipts/{answer.headers['x-request-id']}").json()
    assert found["status"] == "closed"
    return found


def lost_to_timestamps(stack: Stack) -> float:
    name = "pagoda_gateway_prefix_missed_tokens_total"
    return stack.metric("gateway", name, **{"class": "timestamp"})


def test_a_timestamp_in_front_is_found_and_one_at_the_end_costs_nothing(any_stack: Stack) -> None:
    lost_before = lost_to_timestamps(any_stack)
    first = ask(any_stack, f"It is 13:07:18. {RULES}", "Who is Hamlet?")
    assert first["prefix"]["class"] == "never_seen"
    stamped = ask(any_stack, f"It is 13:09:55. {RULES}", "Who is Lear?")
    prefix = stamped["prefix"]
    assert (prefix["class"], prefix["place"], prefix["text"]) == (
        "timestamp", "messages[0]", "13:09:55",
    )  # fmt: skip
    again = ask(any_stack, f"It is 13:09:55. {RULES}", "Who is Macbeth?")
    assert again["prefix"] is None
    # What was said to be expected is what the next request, whose time is the same, has found.
    assert again["cached_tokens"]["total"] == prefix["expected_tokens"]
    assert prefix["lost_tokens"] == prefix["expected_tokens"] - stamped["cached_tokens"]["total"]
    ask(any_stack, f"{RULES} It is 14:00:01.", "Who is Hamlet?")
    at_end = ask(any_stack, f"{RULES} It is 15:10:02.", "Who is Lear?")
    assert at_end["prefix"] is None
    assert at_end["cached_tokens"]["total"] >= BLOCK

    environ = {**os.environ, "PAGODA_HOME": str(any_stack.home)}
    for options in ([], ["--json"]):
        shown = subprocess.run(
            [PAGODA, "prefixes", "--tenant", "default", *options],
            env=environ, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        print(shown.stdout)
        if not options:
            assert "13:07:18 -> 13:09:55" in shown.stdout
            assert "messages[0], system" in shown.stdout
            assert "timestamp: A date or time changes early" in shown.stdout
    (miss,) = [m for m in json.loads(shown.stdout) if m["class"] == "timestamp"]
    assert miss["lost_tokens"] == prefix["lost_tokens"]
    assert lost_to_timestamps(any_stack) - lost_before == prefix["lost_tokens"]


def test_tools_in_another_order(any_stack: Stack) -> None:
    ask(any_stack, RULES, "Who is Othello?", tools=TOOLS)
    same = ask(any_stack, RULES, "Who is Iago?", tools=TOOLS)
    assert same["prefix"] is None
    turned = ask(any_stack, RULES, "Who is Cassio?", tools=TOOLS[::-1])
    assert (turned["prefix"]["class"], turned["prefix"]["place"]) == ("reordered_tools", "tools")


def test_a_conversation_that_goes_on_misses_nothing(any_stack: Stack) -> None:
    messages = [{"role": "system", "content": f"Be kind. {RULES}"}]
    with any_stack.http() as http:
        for turn in range(4):
            messages.append({"role": "user", "content": f"And what comes in act {turn + 1}?"})
            body = {"model": any_stack.model, "messages": messages, "max_tokens": 8}
            answer = http.post("/v1/chat/completions", json=body)
            receipt = http.get(f"/v1/receipts/{answer.headers['x-request-id']}").json()
            assert turn == 0 or receipt["prefix"] is None, receipt
            assert turn == 0 or receipt["cached_tokens"]["total"] > 0
            messages.append(answer.json()["choices"][0]["message"])


def test_equal_prompts_at_a_time_are_prefilled_once(any_stack: Stack) -> None:
    """A twin on the same worker waits for the first one's blocks: no miss, whatever came first."""
    system = "Whatever is asked, reply in rhyme; four lines of eight syllables each will do nicely."
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(lambda _: ask(any_stack, system, "Who is Puck?"), range(4)))
    kinds = [receipt["prefix"] and receipt["prefix"]["class"] for receipt in receipts]
    computed = [
        kind
        for receipt, kind in zip(receipts, kinds, strict=True)
        if not receipt["cached_tokens"]["total"]
    ]
    # Who came to the gateway first may have come to the worker second.
    assert computed in (["never_seen"], ["concurrent"])
    assert kinds.count(None) == len(kinds) - 1
