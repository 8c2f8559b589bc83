"""Bad input: an OpenAI-shaped 4xx that names the field and the limit; the engine never sees it."""

import json

import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Good morrow!"}]


def engine_tokens(stack: Stack) -> list[float]:
    """Tokens that the workers have computed so far."""
    names = ["decode"] + (["prefill"] if "disaggregated" in str(stack.home) else [])
    return [
        stack.metric(name, f"pagoda_{kind}_tokens_total")
        for name in names
        for kind in ("prefill", "decode")
    ]


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"model": "no-such-model"}, 404, ["no-such-model"]),
        ({"messages": []}, 400, ["messages"]),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, 400, ["2048"]),
        ({"temperature": -0.5}, 400, ["temperature", "-0.5", "0"]),
        ({"top_p": 1.5}, 400, ["top_p", "1.5", "1"]),
        ({"max_tokens": 0}, 400, ["max_tokens", "1"]),
        ({"max_tokens": 5000}, 400, ["max_tokens", "5000", "2048"]),
        ({"n": 1000}, 400, ["n", "1000", "16"]),
        ({"logit_bias": {"99999": 1}}, 400, ["logit_bias", "99999"]),
    ],
)
def test_a_bad_field_is_named_with_its_limit(
    any_stack: Stack, fields: dict[str, object], status: int, named: list[str]
) -> None:
    before = engine_tokens(any_stack)
    with any_stack.http() as http:
        for stream in (False, True):
            body = {"model": any_stack.model, "messages": HELLO, "stream": stream, **fields}
            answer = http.post(CHAT, json=body)
            error = answer.json()["error"]
            assert answer.status_code == status
            assert set(error) >= {"message", "type", "param", "code"}
            for word in named:
                assert word in error["message"] + str(error["param"])
            assert answer.headers["x-request-id"]
    assert engine_tokens(any_stack) == before


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"model": "demo", "messages": [', 400),
        (b'{"model": "\xff\xfe"}', 400),
        (b"[1, 2, 3]", 400),
        (b"null", 400),
        (json.dumps({"messages": [{"role": "user", "content": "x" * 9_000_000}]}).encode(), 413),
    ],
    ids=["cut short", "invalid UTF-8", "array", "null", "over the body limit"],
)
def test_a_bad_body_is_refused(any_stack: Stack, content: bytes, status: int) -> None:
    before = engine_tokens(any_stack)
    with any_stack.http() as http:
        answer = http.post(CHAT, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert len(answer.content) < 32_000
    assert engine_tokens(any_stack) == before


@pytest.mark.parametrize("key", ["", "Bearer sk-wrong", "Basic abc"])
def test_a_wrong_key_is_refused_everywhere(any_stack: Stack, key: str) -> None:
    with any_stack.http() as http:
        for method, path in (
            ("POST", CHAT),
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("POST", "/tokenize"),
            ("GET", "/v1/receipts/x"),
        ):
            answer = http.request(method, path, headers={"Authorization": key})
            assert answer.status_code == 401
            assert answer.json()["error"]["message"]
