"""Answers from the cache: whose, of which requests, how they come, what the account says."""

from pathlib import Path
from typing import Any

import pytest
from support.running_gateway import CHAT, Running, Start, says, text_of

from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HEADER = "x-pagoda-cache"
GREEDY = {"temperature": 0, "max_tokens": 100}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "safety.yaml"
    path.write_text("""
policies:
  - name: house
    tenants: [default]
    response_cache: {ttl_seconds: 60}
    rules:
      - {name: swearing, where: [output], action: block, deny: [damn]}
""")
    return path


async def test_an_equal_request_gets_the_same_answer(start: Start, file: Path) -> None:
    async with start(safety_file=file) as running:
        first = await running.chat(**GREEDY, n=2)
        again = await running.chat(**GREEDY, n=2)
        receipts = [await running.receipt(answer) for answer in (first, again)]
        metrics = await running.http.get("/metrics")
    assert (first.headers[HEADER], again.headers[HEADER]) == ("miss", "hit")
    assert len(running.worker.requests) == 2  # of the first, n = 2
    assert first.json()["id"] != again.json()["id"]
    for name in ("choices", "usage", "model"):
        assert first.json()[name] == again.json()[name]
    assert [receipt["cached_answer"] for receipt in receipts] == [False, True]
    for name in ("prompt_tokens", "output_tokens", "finish_reasons", "outcome"):
        assert receipts[0][name] == receipts[1][name]
    assert receipts[1]["workers"] == []
    assert metrics.status_code == 200


async def test_a_beam_search_is_kept_too(start: Start, file: Path) -> None:
    asked = {"use_beam_search": True, "n": 2, "best_of": 3}
    async with start(safety_file=file) as running:
        first = await running.completion(**asked)
        again = await running.completion(**asked)
        other = await running.completion(**asked, length_penalty=0.5)
    headers = [answer.headers[HEADER] for answer in (first, again, other)]
    assert headers == ["miss", "hit", "miss"]
    assert len(running.worker.requests) == 2
    for name in ("choices", "usage"):
        assert first.json()[name] == again.json()[name]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_from_the_cache_is_one(start: Start, file: Path, path: str) -> None:
    prompt = {"prompt": "hello"} if path == "/v1/completions" else {}
    body = {**prompt, **GREEDY, "stream_options": {"include_usage": True}}
    async with start(safety_file=file) as running:
        made = await running.events(path, **body)
        kept = await running.events(path, **body)
        assert len(running.worker.requests) == 1
    assert len(kept) > 5

    def read(events: list[Any]) -> tuple[str, list[Any]]:
        if "chat" in path:
            text = text_of(events)
        else:
            text = "".join(c["text"] for event in events for c in event["choices"])
        ends = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
        return text, [*ends, events[-1]["usage"]]

    assert read(made) == read(kept)


async def test_a_whole_answer_and_a_stream_share_it(start: Start, file: Path) -> None:
    async with start(safety_file=file) as running:
        whole = (await running.chat(**GREEDY)).json()
        events = await running.events(**GREEDY)
        assert len(running.worker.requests) == 1
    assert text_of(events) == whole["choices"][0]["message"]["content"]


async def test_stops_and_ends_come_again(
    start: Start, bus: Bus, model_folder: Path, file: Path
) -> None:
    async with start(says(bus, model_folder, "one two three"), safety_file=file) as running:
        for fields in ({}, {"stop": ["two"]}, {"max_tokens": 3}):
            first, again = [await running.chat(**{**GREEDY, **fields}) for _ in range(2)]
            assert again.headers[HEADER] == "hit"
            assert first.json()["choices"] == again.json()["choices"]
            assert first.json()["usage"] == again.json()["usage"]
        assert len(running.worker.requests) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": 0}, ["miss", "hit"]),
        ({"temperature": 0, "user": "somebody"}, ["miss", "hit"]),
        ({"temperature": 1, "seed": 7}, ["miss", "hit"]),
        ({"temperature": 1}, [None, None]),
        ({}, [None, None]),
    ],
)
async def test_only_what_would_come_out_again_is_kept(
    start: Start, file: Path, fields: dict[str, Any], said: list[str | None]
) -> None:
    async with start(safety_file=file) as running:
        answers = [await running.chat(**fields) for _ in range(2)]
        assert [answer.headers.get(HEADER) for answer in answers] == said


DIFFERENT: list[dict[str, Any]] = [
    {"max_tokens": 7}, {"seed": 1, "temperature": 0.5}, {"seed": 2, "temperature": 0.5},
    {"top_p": 0.5}, {"stop": ["x"]}, {"n": 2}, {"cache_salt": "a"}, {"logit_bias": {"70": 1}},
    {"messages": [{"role": "user", "content": "hello there"}]}, {"min_tokens": 2},
    {"response_format": {"type": "json_object"}}, {"stop_token_ids": [70]},
    {"include_stop_str_in_output": True}, {"presence_penalty": 0.5},
]  # fmt: skip


async def test_whatever_differs_is_another_answer(start: Start, file: Path) -> None:
    async with start(safety_file=file) as running:
        for fields in [{}, *DIFFERENT]:
            answer = await running.chat(**{"temperature": 0, **fields})
            assert answer.status_code == 200, answer.text
            assert answer.headers[HEADER] == "miss", fields
        other = await running.completion(prompt=CHAT["messages"][0]["content"], temperature=0)
        assert other.headers[HEADER] == "miss"


async def test_tenants_share_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("policies: [{name: a, tenants: ['*'], response_cache: {}}]")
    async with start(safety_file=path) as running:
        secret = await _key_of_another(running)
        assert (await running.chat(**GREEDY)).headers[HEADER] == "miss"
        asked = {**CHAT, **GREEDY}
        other = await running.http.post(
            "/v1/chat/completions", json=asked, headers={"authorization": f"Bearer {secret}"}
        )
        assert other.headers[HEADER] == "miss"
        assert (await running.chat(**GREEDY)).headers[HEADER] == "hit"


async def test_what_was_cut_short_is_not_kept(
    start: Start, bus: Bus, model_folder: Path, file: Path
) -> None:
    async with start(says(bus, model_folder, "oh damn"), safety_file=file) as running:
        for _ in range(2):
            answer = await running.chat(**GREEDY)
            assert answer.headers[HEADER] == "miss"
            assert answer.json()["choices"][0]["finish_reason"] == "content_filter"


async def test_its_bytes_and_its_time_are_bounded(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("policies: [{name: a, tenants: ['*'], response_cache: {ttl_seconds: 0.001}}]")

    async def twice(running: Running) -> list[str]:
        return [(await running.chat(**GREEDY)).headers[HEADER] for _ in range(2)]

    async with start(safety_file=path) as running:
        assert await twice(running) == ["miss", "miss"]
    path.write_text("policies: [{name: a, tenants: ['*'], response_cache: {}}]")
    async with start(safety_file=path, response_cache_bytes=100) as running:
        assert await twice(running) == ["miss", "miss"]


async def test_without_a_policy_nothing_is_kept_or_said(running: Running) -> None:
    for _ in range(2):
        assert HEADER not in (await running.chat(**GREEDY)).headers
    assert len(running.worker.requests) == 2


async def _key_of_another(running: Running) -> str:
    tenancy = running.gateway.tenancy
    secret = "sk-another-0123456789"
    await tenancy.api_keys.ensure("another", "test", secret)
    return secret
