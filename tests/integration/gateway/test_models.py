"""One gateway with two models: `tiny`, its own, and `other`, of another tokenizer and template."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.running_gateway import CHAT, Running, Start, heard_of
from support.scripted_worker import ScriptedWorker, running_worker, spell, tiny_card
from support.tiny_tokenizer import sentencepiece_tokenizer, write_model_folder

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1.status_pb2 import ModelCard
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.messaging import subjects

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TwoModels = tuple[Running, ScriptedWorker]
ADMIN_KEY = "admin-key-0123456789"
OTHER_TEMPLATE = "{% for message in messages %}[{{ message.content }}]{% endfor %}"


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "other"
    return write_model_folder(folder, sentencepiece_tokenizer(), chat_template=OTHER_TEMPLATE)


@pytest.fixture(scope="session")
def other_tokenizer(other_folder: Path) -> ModelTokenizer:
    return ModelTokenizer.load(other_folder)


def card_of(name: str, *aliases: str, **values: int) -> ModelCard:
    card = tiny_card(name, **values)
    card.quantization = "awq-int4" if name == "other" else ""  # as an older worker leaves it
    card.aliases.extend(aliases)
    return card


@pytest_asyncio.fixture(loop_scope="module")
async def two_models(
    start: Start, bus: Any, other_folder: Path, other_tokenizer: ModelTokenizer
) -> AsyncIterator[TwoModels]:
    """A gateway of both, and the worker of the other one, which says "hello" again and again."""
    hello = other_tokenizer.encode(" hello", add_special_tokens=False)
    other = ScriptedWorker(
        bus,
        card_of(
            "other",
            "gpt-4o-mini",
            vocab_size=other_tokenizer.vocab_size,
            kv_window=128,
            block_bytes_behind_window=256,
        ),
        token_at=lambda _, index: hello[index % len(hello)],
    )
    tiny = ScriptedWorker(bus, card_of("tiny", "small"), token_at=spell([70]))
    settings = {"models": {"other": str(other_folder)}, "failover_wait_seconds": 1.0}
    async with start(tiny, **settings) as running, running_worker(other):
        for directory in (running.gateway.directory, running.router.directory):
            await heard_of(directory, other.worker_id)
        yield running, other


async def test_each_request_is_its_own_models(two_models: TwoModels) -> None:
    tiny_tokens = {"content": "b" * 8, "prompt": "<|bos|><|user|>hello world<|end|><|assistant|>"}
    other_tokens = {"content": "hellohello", "prompt": "[hello world]"}
    running, other = two_models
    texts = running.gateway.texts
    for name, worker, expected in (
        ("tiny", running.worker, tiny_tokens),
        ("other", other, other_tokens),
    ):
        answer = (await running.chat(model=name)).json()
        (request,) = worker.requests
        prompt = texts[name].prompts.tokenizer.decode(
            request.prompt_token_ids, skip_special_tokens=False
        )
        said = answer["choices"][0]["message"]["content"]
        assert (answer["model"], said.replace(" ", "")) == (name, expected["content"])
        assert prompt.strip() == expected["prompt"]
    assert [r.model for r in running.router.requests] == ["tiny", "other"]
    identities = {r.kv_identity for r in running.router.requests}
    assert identities == {running.worker.card.kv_identity, other.card.kv_identity}
    assert running.worker.requests[0].cache_root != other.requests[0].cache_root


async def test_lists_names_then_aliases(two_models: TwoModels) -> None:
    running, _ = two_models
    listed = (await running.http.get("/v1/models")).json()["data"]
    one = (await running.http.get("/v1/models/gpt-4o-mini")).json()
    async with running.sdk() as client:
        ids = [model.id async for model in client.models.list()]
    assert [(model["id"], model["root"]) for model in listed] == [
        ("tiny", "tiny"),
        ("other", "other"),
        ("gpt-4o-mini", "other"),
        ("small", "tiny"),
    ]
    assert [model["quantization"] for model in listed] == ["none", "awq-int4", "awq-int4", "none"]
    assert one in listed
    assert ids == [model["id"] for model in listed]


@pytest.mark.parametrize(
    ("may_use", "listed"), [("small", ["small"]), ("tiny", ["tiny", "small"]), ("large", [])]
)
async def test_a_key_is_told_of_what_it_may_use(
    start: Start, bus: Any, may_use: str, listed: list[str]
) -> None:
    async with start(ScriptedWorker(bus, card_of("tiny", "small")), admin_key=ADMIN_KEY) as running:
        sent = {"tenant": "default", "models": [may_use]}
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        key = (await running.http.post("/admin/keys", json=sent, headers=headers)).json()["key"]
        own = {"authorization": f"Bearer {key}"}
        found = (await running.http.get("/v1/models", headers=own)).json()["data"]
        assert [model["id"] for model in found] == listed
        for name in ("tiny", "small"):
            answer = await running.http.get(f"/v1/models/{name}", headers=own)
            assert (answer.status_code == 200) == (name in listed)


async def test_a_price_is_of_a_name_and_not_of_an_alias(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, card_of("tiny", "small")), admin_key=ADMIN_KEY) as running:
        for name, status in (("small", 400), ("tiny", 200), ("later", 200)):
            answer = await running.http.post(
                "/admin/prices",
                json={"model": name, "input_micros": 1, "output_micros": 1},
                headers={"authorization": f"Bearer {ADMIN_KEY}"},
            )
            assert answer.status_code == status, name
            if status == 400:
                assert "'small' stands for 'tiny'" in answer.json()["error"]["message"]


async def test_a_card_says_what_kv_takes(two_models: TwoModels) -> None:
    running, _ = two_models
    whole, windowed = [
        (await running.http.get(f"/v1/models/{name}")).json()["kv_cache"]
        for name in ("small", "other")
    ]
    assert whole == {
        "dtype": "float32",
        "block_size": 16,
        "block_bytes": 1024,
        "bytes_per_token": 64,
        "window": None,
        "bytes_per_token_behind_window": 64,
    }
    assert (windowed["window"], windowed["bytes_per_token_behind_window"]) == (128, 16)


async def test_an_alias_is_answered_and_accounted_as_its_model(two_models: TwoModels) -> None:
    running, other = two_models
    answer = await running.chat(model="gpt-4o-mini")
    chunks = await running.events(model="gpt-4o-mini")
    receipt = await running.receipt(answer)
    assert answer.json()["model"] == "other"
    assert {chunk["model"] for chunk in chunks} == {"other"}
    assert receipt["model"] == "other"
    assert len(other.requests) == 2
    assert not running.worker.requests


async def test_every_endpoint_takes_the_other_model(
    two_models: TwoModels, other_tokenizer: ModelTokenizer
) -> None:
    tokens = other_tokenizer.encode("hello", add_special_tokens=True)
    chat_tokens = other_tokenizer.encode("[hello world]", add_special_tokens=False)
    asked: dict[str, dict[str, Any]] = {
        "/tokenize": {"prompt": "hello"},
        "/detokenize": {"tokens": tokens},
        "/v1/completions": {"prompt": "hello", "max_tokens": 5},
        "/v1/embeddings": {"input": "hello"},
        "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
        "/v1/responses": {"input": "hello world", "max_output_tokens": 16},
    }
    running, other = two_models
    answers = {}
    for path, body in asked.items():
        for name in ("other", "gpt-4o-mini"):
            answer = await running.http.post(path, json={**body, "model": name})
            assert answer.status_code == 200, answer.text
            answers[path] = answer.json()
    prompts = [list(request.prompt_token_ids) for request in other.requests]
    assert not running.worker.requests
    assert answers["/tokenize"]["tokens"] == tokens
    assert answers["/detokenize"]["prompt"] == other_tokenizer.decode(
        tokens, skip_special_tokens=False
    )
    assert answers["/v1/messages/count_tokens"]["input_tokens"] == len(chat_tokens)
    assert prompts == [*[tokens] * 4, *[chat_tokens] * 4]
    for path in ("/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"):
        assert answers[path]["model"] == "other", path


async def test_an_unknown_model_is_told_what_there_is(two_models: TwoModels) -> None:
    running, _ = two_models
    answer = await running.chat(model="gpt-9")
    looked_up = await running.http.get("/v1/models/gpt-9")
    assert (answer.status_code, looked_up.status_code) == (404, 404)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'gpt-9' does not exist here" in error["message"]
    assert error["message"].endswith("'tiny', 'other', 'gpt-4o-mini', 'small'")


async def test_the_models_limits_are_its_own(
    two_models: TwoModels, other_tokenizer: ModelTokenizer
) -> None:
    running, _ = two_models
    tokens = {"prompt": [other_tokenizer.vocab_size - 1], "max_tokens": 2}
    tiny = await running.completion(model="tiny", **tokens)
    other = await running.completion(model="other", **tokens)
    assert (tiny.status_code, other.status_code) == (400, 200)
    assert "vocab_size 267" in tiny.json()["error"]["message"]


async def until_ready(running: Running) -> httpx.Response:
    """A late heartbeat of the router, on a busy machine, is none of the models' business."""
    async with asyncio.timeout(60):
        while (answer := await running.http.get("/readyz")).status_code != 200:
            assert answer.json()["components"]["model"]["ready"], answer.text
            await asyncio.sleep(0.05)
    return answer


async def test_one_models_death_leaves_the_other_alone(two_models: TwoModels) -> None:
    running, other = two_models
    await other.stop()
    await heard_of(running.gateway.directory, other.worker_id, gone=True)
    refused, served = await running.chat(model="other"), await running.chat(model="tiny")
    ready = await until_ready(running)
    metrics = (await running.http.get("/metrics")).text
    await running.worker.stop()
    await heard_of(running.gateway.directory, running.worker.worker_id, gone=True)
    not_ready = await running.http.get("/readyz")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert served.status_code == 200
    state = ready.json()["components"]["model"]
    assert (ready.status_code, state["ready"]) == (200, True), ready.text
    assert state["detail"] == "no decode worker serves 'other' now"
    assert 'pagoda_model_decode_workers{model="other"} 0.0' in metrics
    assert 'pagoda_model_decode_workers{model="tiny"} 1.0' in metrics
    assert not_ready.status_code == 503
    said = not_ready.json()["components"]["model"]["detail"]
    assert said == "no decode worker serves 'tiny', 'other' now"


async def test_a_lone_worker_that_refused_is_asked_again_beside_another_models(
    two_models: TwoModels,
) -> None:
    """Another model's worker is no reason to leave out the only one that can serve."""
    running, other = two_models
    admit, answers = other._admit, [pb.ADMIT_STATUS_OVERLOADED, pb.ADMIT_STATUS_ACCEPTED]

    async def refuse_once(request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        other.admit_status = answers.pop(0)
        return await admit(request, context)

    await other._subscriptions[0].unsubscribe()
    other._subscriptions[0] = await other.bus.serve(
        subjects.decode(other.worker_id), pb.GenerateRequest, refuse_once
    )
    answer = await running.chat(model="other")
    asked = [list(request.excluded_worker_ids) for request in running.router.requests]
    assert answer.status_code == 200, answer.text
    assert asked == [[], []]
