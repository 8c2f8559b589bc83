"""A client that goes away: compute stops long before its end, and every block is free again."""

import httpx
import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FREE = "pagoda_kv_free_blocks"
TOKENS = "pagoda_decode_tokens_total"
MAX_TOKENS = 1900
SECONDS = 60  # for what a busy machine does late


def test_blocks_come_back_after_a_disconnect(any_stack: Stack) -> None:
    names = ["decode"] + (["prefill"] if "disaggregated" in str(any_stack.home) else [])
    for name in names:  # whatever ran before has let go
        held = any_stack.wait_metric(name, "pagoda_kv_cache_usage_ratio", lambda x: x == 0, SECONDS)
        assert held == 0
    before = {name: any_stack.metric(name, FREE) for name in names}
    tokens_before = any_stack.metric("decode", TOKENS)
    body = {
        "model": any_stack.model,
        "stream": True,
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me the longest tale thou knowest."}],
    }
    headers = {"Authorization": f"Bearer {any_stack.api_key}"}
    url = f"{any_stack.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers) as response:
        lines = response.iter_lines()  # kept: httpx closes the stream with its iterator
        next(lines)
        during = any_stack.wait_metric("decode", FREE, lambda x: x < before["decode"], SECONDS)
    assert 0 < during < before["decode"]
    after = {
        name: any_stack.wait_metric(name, FREE, lambda x, name=name: x == before[name], SECONDS)
        for name in names
    }
    assert after == before
    generated = any_stack.metric("decode", TOKENS)
    assert generated - tokens_before < MAX_TOKENS - 1
    running = any_stack.wait_metric(
        "decode", "pagoda_num_requests_running", lambda x: x == 0, SECONDS
    )
    assert running == 0
    assert any_stack.metric("decode", TOKENS) == generated
