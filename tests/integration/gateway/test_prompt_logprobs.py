"""Logprobs of the prompt, alone and repeated before a completion."""

import asyncio
import threading
from typing import Any

import pytest
from support.running_gateway import Running, Start, heard_of
from support.scripted_worker import ScriptedWorker, running_worker

from pagoda.rpc.v1 import route_pb2
from pagoda_gateway.openai import choices
from pagoda_gateway.openai.choices import CompletionSerializer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize("num_top", [0, 1, 3])
async def test_each_prompt_token_but_the_first(running: Running, num_top: int) -> None:
    chat = (await running.chat(prompt_logprobs=num_top, return_token_ids=True)).json()
    text = (await running.completion(prompt_logprobs=num_top, return_token_ids=True)).json()
    for answer in (chat, text["choices"][0]):
        first, *others = answer["prompt_logprobs"]
        assert first is None
        assert len(others) == len(answer["prompt_token_ids"]) - 1
        for token_id, found in zip(answer["prompt_token_ids"][1:], others, strict=True):
            assert found[str(token_id)]["rank"] == 1
            assert len(found) == max(1, num_top)
            assert all(entry["logprob"] <= -0.5 for entry in found.values())
    assert "".join(next(iter(e.values()))["decoded_token"] for e in others) == "hello"


async def test_answers_of_many_are_the_same_and_come_in_parts(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {
        "prompt": ["abcdefgh", "ijkl"], "n": 2, "seed": 1, "max_tokens": 3, "prompt_logprobs": 3,
        "logprobs": 2, "echo": True,
    }  # fmt: skip
    threads, real = [], CompletionSerializer._body

    def noted(serializer: CompletionSerializer) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return real(serializer)

    monkeypatch.setattr(CompletionSerializer, "_body", noted)
    whole = await running.completion(**fields)
    monkeypatch.setattr(choices, "INLINE_LOGPROBS", 10)
    monkeypatch.setattr(choices, "PART_BYTES", 100)
    parted = await running.completion(**fields)
    plain = await running.completion(max_tokens=3)
    assert "content-length" in whole.headers
    assert "content-length" in plain.headers
    assert parted.headers["transfer-encoding"] == "chunked"
    assert parted.json()["choices"] == whole.json()["choices"]
    assert [thread is threading.main_thread() for thread in threads] == [True, False, True]


async def test_null_unless_asked_for(running: Running) -> None:
    assert (await running.chat()).json()["prompt_logprobs"] is None
    assert (await running.completion()).json()["choices"][0]["prompt_logprobs"] is None
    assert not running.worker.requests[-1].sampling.HasField("num_prompt_logprobs")


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
async def test_echo_with_logprobs(running: Running, max_tokens: int) -> None:
    fields: dict[str, Any] = {
        "prompt": [[69, 70, 71], [72, 73]], "echo": True, "logprobs": 2, "max_tokens": max_tokens,
    }  # fmt: skip
    answer = (await running.completion(**fields)).json()
    assert answer["usage"]["completion_tokens"] == 2 * max_tokens
    for choice, prompt in zip(answer["choices"], ("abc", "de"), strict=True):
        assert choice["text"].startswith(prompt)
        assert choice["finish_reason"] == "length"
        logprobs = choice["logprobs"]
        num_tokens = len(prompt) + max_tokens
        assert {name: len(values) for name, values in logprobs.items()} == dict.fromkeys(
            ("tokens", "token_logprobs", "top_logprobs", "text_offset"), num_tokens
        )
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert logprobs["text_offset"] == list(range(num_tokens))
        assert logprobs["token_logprobs"] == [None] + [-0.5] * (num_tokens - 1)
        assert logprobs["top_logprobs"][0] is None
        assert all(len(top) == 2 for top in logprobs["top_logprobs"][1:])


async def test_streamed_echo_is_the_whole(running: Running) -> None:
    fields = {"prompt": ["ab", "cd"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 3}
    fields |= {"seed": 1}
    whole = (await running.completion(**fields)).json()["choices"]
    found: list[dict[str, Any]] = [{} for _ in whole]
    for chunk in await running.events("/v1/completions", **fields):
        for choice in chunk["choices"]:
            for name, values in (choice["logprobs"] or {}).items():
                found[choice["index"]].setdefault(name, []).extend(values)
    assert found == [choice["logprobs"] for choice in whole]


async def test_max_tokens_0_alone_is_refused(running: Running) -> None:
    for fields in ({}, {"echo": False}, {"logprobs": 1}):
        answer = await running.completion(max_tokens=0, **fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "max_tokens"
    assert (await running.chat(max_tokens=0, prompt_logprobs=1)).status_code == 400
    scored = await running.completion(max_tokens=0, prompt_logprobs=1)
    assert scored.json()["choices"][0]["text"] == ""
    receipt = await running.receipt(scored)
    assert (receipt["output_tokens"], receipt["finish_reasons"]) == (0, ["length"])


async def test_a_prompt_can_be_repeated_alone(running: Running) -> None:
    answer = await running.completion(prompt=["abc", "de"], echo=True, max_tokens=0)
    assert answer.status_code == 200
    choices = answer.json()["choices"]
    assert [(c["text"], c["logprobs"], c["prompt_logprobs"]) for c in choices] == [
        ("abc", None, None), ("de", None, None),
    ]  # fmt: skip
    assert answer.json()["usage"]["completion_tokens"] == 0


async def test_the_prompt_is_computed_where_the_output_is(running: Running) -> None:
    running.router.answer = route_pb2.RouteResponse(
        status=route_pb2.ROUTE_STATUS_PLACED,
        decode_worker_id=running.worker.worker_id,
        prefill_worker_id="prefill-elsewhere",
        num_fetch_blocks=2,
    )
    await running.completion()
    assert running.worker.requests[-1].plan.prefill_worker_id == "prefill-elsewhere"
    await running.completion(prompt_logprobs=0)
    plan = running.worker.requests[-1].plan
    assert (plan.prefill_worker_id, plan.num_fetch_blocks) == ("", 0)


async def test_another_attempt_brings_each_once(start: Start, bus: Any) -> None:
    first = ScriptedWorker(bus, gate_index=2)
    fields = {"prompt": [69, 70, 71], "echo": True, "logprobs": 0, "max_tokens": 4, "seed": 1}
    async with start(first) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.completion(**fields))
        await first.wait_until(lambda: bool(first.requests))
        async with running_worker(ScriptedWorker(bus)) as second:
            await heard_of(running.router.directory, second.worker_id)
            await running.tokens_arrived(2)
            await first.kill()
            choice = (await asking).json()["choices"][0]
        assert second.requests[0].attempt == 1
        assert choice["logprobs"]["tokens"][:3] == ["a", "b", "c"]
        assert choice["logprobs"]["token_logprobs"] == [None] + [-0.5] * 6
