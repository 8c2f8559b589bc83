"""Moderators in a running gateway: a service over real HTTP, and a classifier made here."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.moderation_server import ModerationServer, moderation_server
from support.running_gateway import Start, says, text_of
from support.tiny_classifier import write_classifier

from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


def policy(folder: Path, server: ModerationServer, **moderator: Any) -> Path:
    key = folder / "key"
    key.write_text("sk-moderator\n")
    fields = "".join(f", {name}: {value}" for name, value in moderator.items())
    path = folder / "safety.yaml"
    path.write_text(f"""
moderators:
  service: {{kind: http, url: '{server.url}', model: omni, api_key_file: '{key}'{fields}}}
policies:
  - name: house
    tenants: [default]
    rules:
      - {{name: evil, action: block, moderator: service}}
      - {{name: doubtful, action: flag, moderator: service, thresholds: {{evil: 0.05}}}}
""")
    return path


def asked(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 400, **fields}


async def test_a_service_judges_prompts_and_outputs(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    text = "a long and harmless story " * 4 + "of evil deeds " + "and more of it " * 9
    async with moderation_server() as server:
        file = policy(tmp_path, server, window_chars=40, overlap_chars=8)
        worker = says(bus, model_folder, text, step_seconds=0.001)
        async with start(worker, safety_file=file) as running:
            refused = await running.chat(**asked("an evil question"))
            assert worker.requests == []
            chunks = await running.events(**asked("a good question"))
            whole = (await running.chat(**asked("a good question"))).json()
            receipt = await running.http.get(f"/v1/receipts/{chunks[0]['id']}")
            server.word = "nothing"
            clean = await running.chat(**asked("a good question"))
            moderated = await running.http.post("/v1/moderations", json={"input": "nothing"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "content_policy_violation"
    assert "rule 'evil'" in refused.json()["error"]["message"]
    assert server.bodies[0] == {"input": ["an evil question"], "model": "omni"}
    assert set(server.keys) == {"Bearer sk-moderator"}
    assert "evil" not in text_of(chunks)
    assert text.startswith(text_of(chunks))
    assert len(text_of(chunks)) > 40
    assert chunks[-1]["choices"][0]["finish_reason"] == "content_filter"
    assert whole["choices"][0]["finish_reason"] == "content_filter"
    # The worker goes on while windows are judged; nobody pays for what is not shown.
    tokenizer = ModelTokenizer.load(model_folder)
    content = whole["choices"][0]["message"]["content"]
    for num_tokens, shown in (
        (receipt.json()["output_tokens"], text_of(chunks)),
        (whole["usage"]["completion_tokens"], content),
    ):
        assert num_tokens == len(tokenizer.encode(shown, add_special_tokens=False))
    assert "evil" not in whole["choices"][0]["message"]["content"]
    assert receipt.json()["safety_findings"] == [
        "house/doubtful flag input", "house/doubtful flag output", "house/evil block output",
    ]  # fmt: skip
    assert clean.json()["choices"][0]["message"]["content"] == text
    assert clean.json()["choices"][0]["finish_reason"] == "stop"
    assert moderated.json()["results"][0]["categories"] == {"evil": True}


async def test_a_prompt_refused_in_the_background_is_not_worth_another_try(
    start: Start, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "an evil question", "background": True}
    async with (
        moderation_server() as server,
        start(safety_file=policy(tmp_path, server)) as running,
        running.sdk() as client,
    ):
        queued = await client.responses.create(**asked)
        assert await running.gateway.admission.drain(30)
        found = await client.responses.retrieve(queued.id)
    assert found.status == "failed"
    assert found.error is not None
    assert found.error.code == "invalid_prompt"
    assert "rule 'evil'" in found.error.message


async def test_a_service_sees_all_that_is_said(start: Start, tmp_path: Path) -> None:
    call = {"function": {"name": "f", "arguments": '{"a": "\\u0065vil"}'}}
    tool = {"type": "function", "function": {"name": "f", "description": "evil"}}
    parts = [{"type": "text", "text": "so ev"}, {"type": "text", "text": "il"}]
    async with (
        moderation_server() as server,
        start(safety_file=policy(tmp_path, server)) as running,
    ):
        for body in (
            asked("hi", tools=[tool]),
            asked("hi", documents=[{"text": "evil"}]),
            {"messages": [{"role": "user", "content": parts}]},
            {"messages": [{"role": "assistant", "tool_calls": [call]}]},
        ):
            answer = await running.chat(**body)
            assert answer.status_code == 400, answer.text
            assert "rule 'evil'" in answer.json()["error"]["message"]
        assert running.worker.requests == []


async def test_nothing_is_streamed_before_it_is_judged(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    async with moderation_server() as server:
        file = policy(tmp_path, server, window_chars=40, overlap_chars=8, timeout_seconds=30)
        async with start(says(bus, model_folder, "short and evil"), safety_file=file) as running:
            async with asyncio.TaskGroup() as tasks:
                server.word = "!"
                asking = tasks.create_task(running.events(**asked("hi")))
                while len(server.bodies) < 1:  # noqa: ASYNC110  (another server's)
                    await asyncio.sleep(0.001)
                server.gate.clear()
                while len(server.bodies) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                (generation,) = running.gateway.admission._generations
                assert generation.sequences[0].is_finished
                assert not generation.is_over
                assert generation.sequences[0].num_delivered == 0
                server.word = "evil"
                server.gate.set()
            assert text_of(asking.result()) == ""


async def test_running_usage_counts_what_is_judged(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = "well, " * 20 + "an evil end"
    async with moderation_server() as server:
        file = policy(tmp_path, server, window_chars=40, overlap_chars=8, timeout_seconds=30)
        async with start(says(bus, model_folder, text), safety_file=file) as running:
            chunks = await running.events(**asked("hi", stream_options=options, n=2))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] < 2 * len(text)
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert ends.count("content_filter") == 2


@pytest.mark.parametrize("how", ["status", "silence", "nobody"])
async def test_a_service_that_cannot_judge(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path, how: str
) -> None:
    async with moderation_server() as server:
        if how == "status":
            server.status = 500
        elif how == "silence":
            server.gate.clear()
        else:
            server.url = "http://127.0.0.1:1/v1/moderations"
        answers = {}
        for on_failure in ("closed", "open"):
            file = policy(tmp_path, server, timeout_seconds=0.2, on_failure=on_failure)
            async with start(says(bus, model_folder, "evil"), safety_file=file) as running:
                answers[on_failure] = await running.chat(**asked("an evil question"))
    assert answers["closed"].status_code == 503
    assert "the moderator 'service' cannot judge" in answers["closed"].json()["error"]["message"]
    assert int(answers["closed"].headers["retry-after"]) == 1
    assert answers["open"].json()["choices"][0]["message"]["content"] == "evil"


async def test_a_stream_whose_moderator_fails_ends_with_an_error(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    async with moderation_server() as server:
        file = policy(tmp_path, server, window_chars=40, overlap_chars=8, timeout_seconds=30)
        worker = says(bus, model_folder, "on and on " * 30, step_seconds=0.002)
        async with start(worker, safety_file=file) as running:
            body = {"model": "tiny", **asked("hi", stream=True)}
            async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                server.status = 500
                rest = [line async for line in lines if line]
            receipt = await running.receipt(answer)
    assert "the moderator 'service' cannot judge" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert receipt["outcome"] == "failed"
    assert len(worker.cancels) == 1


async def test_few_ask_at_once(start: Start, tmp_path: Path) -> None:
    async with moderation_server() as server:
        server.gate.clear()
        file = policy(tmp_path, server, max_concurrent=2, timeout_seconds=20)
        async with start(safety_file=file) as running, asyncio.TaskGroup() as tasks:
            for _ in range(12):
                tasks.create_task(running.chat())
            while server.num_asking < 2:  # noqa: ASYNC110  (another server's)
                await asyncio.sleep(0.001)
            server.gate.set()
    assert server.most_asking == 2
    assert len(server.bodies) == 24


async def test_who_leaves_while_a_judgement_is_awaited_frees_everything(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    async with moderation_server() as server:
        file = policy(tmp_path, server, window_chars=16, overlap_chars=0, timeout_seconds=30)
        worker = says(bus, model_folder, "on and on " * 30, step_seconds=0.002)
        async with start(worker, safety_file=file) as running:
            body = {"model": "tiny", **asked("hi", stream=True)}
            async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                server.gate.clear()
                while not server.num_asking:  # noqa: ASYNC110  (another server's)
                    await asyncio.sleep(0.001)
            await worker.wait_until(lambda: bool(worker.cancels))
            async with asyncio.timeout(60):
                while running.gateway.admission._generations:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert worker.num_running == 0
            async with asyncio.timeout(60):
                while server.num_asking:
                    await asyncio.sleep(0.001)
                    server.gate.set()


async def test_a_classifier_in_this_process(
    start: Start, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    folder = write_classifier(tmp_path / "classifier", bad_word="evil")
    file = tmp_path / "safety.yaml"
    file.write_text(f"""
moderators:
  local: {{kind: classifier, folder: '{folder}', window_chars: 64, overlap_chars: 16}}
policies:
  - name: house
    tenants: ['*']
    rules:
      - {{name: toxic, action: block, moderator: local, thresholds: {{toxic: 0.5}}}}
""")
    async with start(
        says(bus, model_folder, "a good story and then an evil end"), safety_file=file
    ) as running:
        refused = await running.chat(**asked("some evil thing"))
        answer = (await running.chat(**asked("some good thing"))).json()
        judged = await running.http.post(
            "/v1/moderations", json={"input": ["an evil text", "a good text"]}
        )
    assert refused.status_code == 400
    assert answer["choices"][0]["finish_reason"] == "content_filter"
    assert "evil" not in answer["choices"][0]["message"]["content"]
    results = judged.json()["results"]
    assert [result["flagged"] for result in results] == [True, False]
    scores = [result["category_scores"]["toxic"] for result in results]
    assert scores[0] > 0.9 > 0.1 > scores[1]
