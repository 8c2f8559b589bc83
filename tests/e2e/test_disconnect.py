"""A client that goes away: compute stops and every block is free again within a second."""

import httpx
import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_blocks_come_back_after_a_disconnect(any_stack: Stack) -> None:
    names = ["decode"] + (["prefill"] if "disaggregated" in str(any_stack.home) else [])
    for name in names:  # whatever ran before has let go
        assert any_stack.wait_metric(name, "pagoda_kv_cache_usage_ratio", 0, seconds=5) == 0
    before = {name: any_stack.metric(name, "pagoda_kv_free_blocks") for name in names}
    body = {
        "model": any_stack.model,
        "stream": True,
        "max_tokens": 1500,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me the longest tale thou knowest."}],
    }
    headers = {"Authorization": f"Bearer {any_stack.api_key}"}
    with httpx.stream(
        "POST", f"{any_stack.url}/v1/chat/completions", json=body, headers=headers
    ) as r:
        lines = r.iter_lines()
        for _ in range(8):
            next(lines)
        during = any_stack.metric("decode", "pagoda_kv_free_blocks")
    assert during < before["decode"]
    after = {
        name: any_stack.wait_metric(name, "pagoda_kv_free_blocks", before[name], seconds=1)
        for name in names
    }
    assert after == before
    assert any_stack.wait_metric("decode", "pagoda_num_requests_running", 0, seconds=1) == 0
