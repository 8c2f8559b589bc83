"""What clients and operators keep to themselves: in no log line, span or metric of a gateway.

A gateway runs as a process, at the most talkative level, and is sent marked words every way there
is; then everything that it wrote is searched for them.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from support.gateway_process import gateway_environment, launch_gateway, until_ready
from support.moderation_server import moderation_server
from support.running_gateway import API_KEY, Start
from support.scripted_worker import (
    ScriptedRouter,
    ScriptedWorker,
    running_router,
    running_worker,
    spell,
)
from support.servers import free_port
from support.tiny_tokenizer import EOS_ID

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PROMPT = "promptcanary5f1c"
OUTPUT = "outputcanary77ab"
DENIED = "deniedcanary90de"
WRONG_KEY = "sk-wrongkeycanary31"
ADMIN_KEY = "sk-admin-canary-42-0123"
MODERATOR_KEY = "sk-moderator-canary-9"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

SAID: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}]}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "n": 2}),
    (CHAT, {"messages": [{"role": "user", "content": f"{PROMPT} {DENIED}"}]}),
    (COMPLETION, {"prompt": [PROMPT, PROMPT], "echo": True, "logprobs": 1}),
    (COMPLETION, {"prompt": PROMPT, "stream": True, "stop": [PROMPT, OUTPUT[3:]]}),
    ("/v1/embeddings", {"input": [PROMPT]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT}], "system": PROMPT}),
    ("/v1/responses", {"input": PROMPT, "instructions": PROMPT}),
    ("/v1/moderations", {"input": [PROMPT, DENIED]}),
    ("/tokenize", {"prompt": PROMPT}),
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": PROMPT, "content": PROMPT}]}),
    (CHAT, {"messages": [{"role": "user", "content": {"text": PROMPT}}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": PROMPT}]}]}),
    (CHAT, {"messages": PROMPT}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "temperature": PROMPT}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "logit_bias": {PROMPT: PROMPT}}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "metadata": {PROMPT: {PROMPT: 1}}}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "tools": [{"type": PROMPT}]}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "tool_choice": PROMPT}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "guided_regex": f"({PROMPT}"}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "guided_json": {"type": PROMPT}}),
    (
        CHAT,
        {"messages": [{"role": "user", "content": PROMPT}], "guided_grammar": f"start: {PROMPT}"},
    ),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "chat_template_kwargs": PROMPT}),
    (CHAT, {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 10_000_000}),
    (COMPLETION, {"prompt": {PROMPT: PROMPT}}),
    (COMPLETION, {"prompt": PROMPT * 100}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": PROMPT}]}]}),
    ("/v1/responses", {"input": [{"type": PROMPT, "content": PROMPT}]}),
    ("/v1/embeddings", {"input": {PROMPT: 1}}),
    ("/v1/moderations", {"input": [{"type": PROMPT}]}),
    ("/detokenize", {"tokens": [PROMPT]}),
]


async def ask_everything(http: httpx.AsyncClient, worker: ScriptedWorker) -> list[str]:
    """Send all of it; return what it brought forth that is secret too."""
    for path, body in SAID:
        answer = await http.post(path, json={"model": "tiny", "max_tokens": 40, **body})
        assert answer.status_code == 400 if DENIED in str(body.get("messages")) else 200, (
            answer.text
        )
    for path, body in WRONG:
        answer = await http.post(path, json={"model": "tiny", "max_tokens": 40, **body})
        assert answer.status_code == 400, (path, body, answer.text)
    good = {"model": "tiny", **SAID[0][1]}
    for raw in (f'{{"model": "tiny", "messages": {PROMPT}', f'["{PROMPT}"]', f'"{PROMPT}"'):
        assert (await http.post(CHAT, content=raw)).status_code == 400
    for key in (WRONG_KEY, f"{WRONG_KEY}-2"):
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key)):
            headers = {"authorization": "", name: value}
            assert (await http.post(CHAT, json=good, headers=headers)).status_code == 401
    for text in (PROMPT, API_KEY):
        await http.get(f"/v1/receipts/{text}", params={"q": text})
        await http.get(f"/v1/models/{text}")
    secrets = await use_administration(http)
    await run_batch(http)
    await leave_early(http, good, worker)
    await fail(http, good, worker)
    return secrets


async def use_administration(http: httpx.AsyncClient) -> list[str]:
    """Return the keys that it gave out."""
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    wrong = {"authorization": f"Bearer {WRONG_KEY}-admin"}
    assert (await http.get("/admin/keys", headers=wrong)).status_code == 401
    bad = await http.post("/admin/keys", json={"tenant": {"x": WRONG_KEY}}, headers=admin)
    assert bad.status_code == 400
    made = (await http.post("/admin/keys", json={"tenant": "default"}, headers=admin)).json()
    turned = await http.post(f"/admin/keys/{made['id']}/rotate", json={}, headers=admin)
    secrets = [made["key"], turned.json()["key"]]
    for secret in secrets:
        await http.get("/v1/models", headers={"authorization": f"Bearer {secret}"})
    return secrets


async def run_batch(http: httpx.AsyncClient) -> None:
    """Two lines: one runs, one is wrong."""
    lines = [
        {"custom_id": f"{i}", "method": "POST", "url": CHAT, "body": {"model": "tiny", **body}}
        for i, (_, body) in enumerate((SAID[0], WRONG[0]))
    ]
    file = b"\n".join(orjson.dumps(line) for line in lines)
    sent = await http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", file)}
    )
    values = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": sent.json()["id"]}
    batch = (await http.post("/v1/batches", json=values)).json()
    async with asyncio.timeout(60):
        while batch["status"] not in ("completed", "failed"):
            batch = (await http.get(f"/v1/batches/{batch['id']}")).json()
            await asyncio.sleep(0.02)  # another process: there is no event to wait on


async def leave_early(
    http: httpx.AsyncClient, body: dict[str, Any], worker: ScriptedWorker
) -> None:
    worker.gate_index, num_cancels = 1, len(worker.cancels)
    async with http.stream("POST", CHAT, json={**body, "stream": True}) as answer:
        await anext(answer.aiter_lines())
    await worker.wait_until(lambda: len(worker.cancels) > num_cancels)
    worker.open_gate()


async def fail(http: httpx.AsyncClient, body: dict[str, Any], worker: ScriptedWorker) -> None:
    """A worker whose errors show what it was at."""
    worker.gate_index, worker.finish_error = 1, f"cannot go on behind {OUTPUT[:4]}{OUTPUT[4:]}"
    worker.finish_reason = pb.FINISH_REASON_INVALID
    assert (await http.post(CHAT, json=body)).status_code == 400
    worker.finish_error, worker.finish_reason = "", pb.FINISH_REASON_ERROR
    worker.open_gate()


async def test_nothing_secret_is_written(
    nats_common: CommonSettings, bus: Bus, model_folder: Path, tmp_path: Path
) -> None:
    ids = ModelTokenizer.load(model_folder).encode(f"so {OUTPUT}", add_special_tokens=False)
    worker = ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]))
    (tmp_path / "key").write_text(MODERATOR_KEY)
    port, health_port = free_port(), free_port()
    async with (
        moderation_server() as moderators,
        running_router(ScriptedRouter(bus)),
        running_worker(worker),
    ):
        policies = tmp_path / "safety.yaml"
        policies.write_text(f"""
moderators:
  service:
    {{kind: http, url: '{moderators.url}', api_key_file: '{tmp_path / "key"}', on_failure: open}}
policies:
  - name: house
    tenants: ['*']
    response_cache: {{}}
    rules:
      - {{name: denied, action: block, deny: [{DENIED}]}}
      - {{name: marked, action: flag, deny: [{PROMPT}, {OUTPUT}]}}
      - {{name: judged, action: flag, moderator: service}}
""")
        environ = gateway_environment(nats_common, model_folder, port) | {
            "PAGODA_LOG_LEVEL": "DEBUG",
            "PAGODA_TRACE_DIR": str(tmp_path / "traces"),
            "PAGODA_GATEWAY_ADMIN_KEY": ADMIN_KEY,
            "PAGODA_GATEWAY_SAFETY_FILE": str(policies),
            "PAGODA_GATEWAY_HEALTH_PORT": str(health_port),
            "PAGODA_GATEWAY_RECEIPT_WAIT_SECONDS": "0",
        }
        process = await launch_gateway(environ)
        reading = asyncio.create_task(_all_of(process))
        url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {API_KEY}"}
        try:
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
                await until_ready(http)
                secrets = await ask_everything(http, worker)
                moderators.status = 500
                await http.post(CHAT, json={"model": "tiny", **SAID[0][1]})
                metrics = await http.get(f"http://127.0.0.1:{health_port}/metrics")
        finally:
            process.send_signal(signal.SIGTERM)
            log = await reading
    spans = "".join(path.read_text() for path in (tmp_path / "traces").glob("*.jsonl"))
    assert "gateway.request" in spans
    assert "listening" in log
    assert "moderator service: it answers with status 500" in log
    assert "pagoda_safety_matches" in metrics.text
    nats_token = nats_common.nats_token.get_secret_value()
    for secret in (
        PROMPT, OUTPUT, DENIED, WRONG_KEY, ADMIN_KEY, MODERATOR_KEY, API_KEY, nats_token, *secrets,
    ):  # fmt: skip
        for name, written in (("log", log), ("spans", spans), ("metrics", metrics.text)):
            place = written.find(secret)
            assert place < 0, f"{name}: ...{written[max(0, place - 300) : place + 100]}..."


async def test_prompts_are_logged_only_where_a_setting_says_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with start(log_prompts=True) as running:
        await running.chat(messages=[{"role": "user", "content": PROMPT}])
        assert sum(PROMPT in message for message in caplog.messages) == 1
    caplog.clear()
    async with start() as running:
        await running.chat(messages=[{"role": "user", "content": PROMPT}])
        assert PROMPT not in caplog.text


async def _all_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None, "it was asked for"
    async with asyncio.timeout(60):
        return (await process.stdout.read()).decode()
