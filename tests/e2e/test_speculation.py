"""A new installation speculates by itself, and receipts say what that came to."""

import json
from pathlib import Path

import pytest
from support.report_schema import REPORT
from support.stack import running_stack

# Alone: where something else has the processor, to verify tokens may seem not to pay.
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone]

BODY = {
    "messages": [{"role": "user", "content": "What news from the battle, good my lord?"}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "strict": True, "schema": REPORT},
    },
    "max_tokens": 200,
    "temperature": 0,
}
MOST = 40
"""Times that it is asked: how soon tokens are proposed depends on the time that steps took."""


@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_what_is_asked_again_is_foreseen_and_receipts_say_so(topology: str, tmp_path: Path) -> None:
    """On a processor with AVX2, where speculation is on by itself."""
    contents, counts = set(), []
    with running_stack(tmp_path, {"PAGODA_TOPOLOGY": topology}) as stack, stack.http() as http:
        body = {**BODY, "model": stack.model}
        while len(counts) < MOST and not (len(counts) > 2 and counts[-1]["accepted_tokens"]):
            answer = http.post("/v1/chat/completions", json=body).raise_for_status()
            contents.add(answer.json()["choices"][0]["message"]["content"])
            beside = json.loads(answer.headers["x-pagoda-receipt"])
            ledger = http.get(f"/v1/receipts/{beside['request_id']}").json()
            assert ledger["speculation"] == beside["speculation"]
            counts.append(beside["speculation"])
    assert len(contents) == 1
    assert all(count["accepted_tokens"] <= count["proposed_tokens"] for count in counts)
    assert sum(count["accepted_tokens"] for count in counts) > 0, counts
