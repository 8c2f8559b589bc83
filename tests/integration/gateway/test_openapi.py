"""/openapi.json is true: it has every body's fields, and real answers fit the schemas it names."""

from typing import Any

import orjson
import pytest
from support.batch_files import ENDPOINT, batch_line, jsonl
from support.documented import check, content, document
from support.running_gateway import CHAT, Running

from pagoda_gateway.anthropic.schemas import CountTokensBody, MessagesBody
from pagoda_gateway.batches.schemas import BatchBody
from pagoda_gateway.embeddings.schemas import EmbeddingsBody
from pagoda_gateway.http.middleware import OPEN_PATHS
from pagoda_gateway.message_batches.schemas import MessageBatchBody
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.openai.schemas.tokens import DetokenizeBody, TokenizeBody
from pagoda_gateway.responses.schemas import ResponsesBody

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BODIES = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/embeddings": EmbeddingsBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/v1/messages/batches": MessageBatchBody,
    "/v1/responses": ResponsesBody,
    "/v1/batches": BatchBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
TOOL = {"type": "function", "name": "f", "parameters": {}}
RICH = {"n": 2, "return_token_ids": True, "stop": ["zz"]}


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if "$ref" in node else []
    return own + [found for item in node.values() for found in references(item)]


def event_schema(media: dict[str, Any]) -> Any:
    """Return the schema of what an event's data holds, but for `[DONE]`."""
    data = media["text/event-stream"]["schema"]["properties"]["data"]
    (json_text,) = [d for d in data.get("anyOf", [data]) if "contentSchema" in d]
    assert json_text["contentMediaType"] == "application/json"
    return json_text["contentSchema"]


async def test_all_references_resolve(running: Running) -> None:
    found = await document(running)
    named = references(found)
    assert named
    for reference in named:
        assert reference.removeprefix("#/components/schemas/") in found["components"]["schemas"]


@pytest.mark.parametrize("path", BODIES)
async def test_document_has_every_field_of_a_body(running: Running, path: str) -> None:
    found = await document(running)
    request = found["paths"][path]["post"]["requestBody"]
    assert request["required"] is True
    name = request["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
    assert name == BODIES[path].__name__
    schema = found["components"]["schemas"][name]
    assert set(schema["properties"]) == set(BODIES[path].model_fields)


async def test_document_names_limits_and_required_fields(running: Running) -> None:
    schemas = (await document(running))["components"]["schemas"]
    assert schemas["ChatBody"]["required"] == ["model", "messages"]
    assert schemas["CompletionBody"]["required"] == ["model", "prompt"]
    assert schemas["ChatBody"]["properties"]["temperature"]["anyOf"][0]["maximum"] == 2


async def test_keyed_routes_need_the_key_and_answer_with_our_errors(running: Running) -> None:
    found = await document(running)
    assert found["components"]["securitySchemes"] == {
        "api_key": {"type": "http", "scheme": "bearer"},
        "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in found["paths"].items():
        for operation in operations.values():
            is_open = path in OPEN_PATHS
            assert ("security" not in operation) is is_open, path
            if not is_open:
                bad = (await running.http.get(path, headers={"authorization": "Bearer x"})).json()
                assert "422" not in operation["responses"]
                for status in ("4XX", "5XX"):
                    media = content(operation, status)["application/json"]
                    check(found, media["schema"], bad)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {**RICH, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/completions", {**RICH, "prompt": ["a", [70]], "logprobs": 2}),
    ],
)
async def test_answers_fit_the_document(
    running: Running, path: str, fields: dict[str, Any]
) -> None:
    found = await document(running)
    media = content(found["paths"][path]["post"])
    body = {**(CHAT if "chat" in path else {"model": "tiny", "max_tokens": 8}), **fields}
    whole = await running.http.post(path, json=body)
    check(found, media["application/json"]["schema"], whole.json())
    usage = {"include_usage": True, "continuous_usage_stats": True, "include_receipt": True}
    chunks = await running.events(path, **body, stream_options=usage)
    assert chunks[-1]["receipt"]
    for chunk in chunks:
        check(found, event_schema(media), chunk)


async def test_other_answers_fit_the_document(running: Running) -> None:
    found = await document(running)
    asked = {
        "/v1/embeddings": {"model": "tiny", "input": ["hello", "world"], "dimensions": 2},
        "/tokenize": {"prompt": "hello", "return_token_strs": True},
        "/detokenize": {"tokens": [70, 71]},
        "/v1/messages/count_tokens": {"model": "tiny", "messages": CHAT["messages"]},
    }
    for path, body in asked.items():
        answer = await running.http.post(path, json=body)
        media = content(found["paths"][path]["post"])["application/json"]
        check(found, media["schema"], answer.json())
    for path, asked_path in (("/v1/models", ""), ("/v1/models/{model_id}", "/tiny")):
        answer = await running.http.get("/v1/models" + asked_path)
        media = content(found["paths"][path]["get"])["application/json"]
        check(found, media["schema"], answer.json())


async def test_receipts_fit_the_document(running: Running) -> None:
    found = await document(running)
    receipt = await running.receipt(await running.chat())
    assert receipt["status"] == "closed"
    media = content(found["paths"]["/v1/receipts/{request_id}"]["get"])["application/json"]
    check(found, media["schema"], receipt)


async def test_bodies_that_are_served_fit_the_document(running: Running) -> None:
    found = await document(running)
    chat = {
        **CHAT, "stop": "x", "logit_bias": {"70": 5}, "tool_choice": "none",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    }  # fmt: skip
    assert (await running.chat(**chat)).status_code == 200
    check(found, {"$ref": "#/components/schemas/ChatBody"}, chat)
    for prompt in ("a", [70, 71], ["a", [70]]):
        completion = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
        assert (await running.completion(**completion)).status_code == 200
        check(found, {"$ref": "#/components/schemas/CompletionBody"}, completion)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_named_events_fit_the_document(running: Running, path: str) -> None:
    found = await document(running)
    media = content(found["paths"][path]["post"])
    body = {"model": "tiny", "max_tokens": 8, "messages": CHAT["messages"]}
    if path == "/v1/responses":
        body = {"model": "tiny", "max_output_tokens": 8, "input": "hello", "tools": [TOOL]}
    whole = await running.http.post(path, json=body)
    check(found, media["application/json"]["schema"], whole.json())
    body |= {"stream": True, "stream_options": {"include_receipt": True}}
    stream = await running.http.post(path, json=body)
    events = [line[6:] for line in stream.text.split("\n") if line.startswith("data: ")]
    assert len(events) > 5
    assert orjson.loads(events[-1])["receipt"]
    for event in events:
        check(found, event_schema(media), orjson.loads(event))


async def test_kept_responses_fit_the_document(running: Running) -> None:
    found = await document(running)
    kept = (await running.http.post("/v1/responses", json={"model": "tiny", "input": "a"})).json()
    items = await running.http.get(f"/v1/responses/{kept['id']}/input_items")
    operation = found["paths"]["/v1/responses/{response_id}/input_items"]["get"]
    check(found, content(operation)["application/json"]["schema"], items.json())
    operations = found["paths"]["/v1/responses/{response_id}"]
    for method, operation in operations.items():  # get, then delete
        answer = await running.http.request(method, f"/v1/responses/{kept['id']}")
        assert answer.status_code == 200
        check(found, content(operation)["application/json"]["schema"], answer.json())


async def test_files_and_batches_fit_the_document(running: Running) -> None:
    found, http = await document(running), running.http
    paths = found["paths"]
    form = paths["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    fields = {"purpose": "batch", "expires_after[anchor]": "created_at"}
    fields["expires_after[seconds]"] = "3600"
    assert set(fields) | {"file"} == set(form["properties"])

    async def checked(method: str, path: str, shown: str, **sent: Any) -> dict[str, Any]:
        answer = await http.request(method, path, **sent)
        assert answer.status_code == 200, answer.text
        media = content(paths[shown][method.lower()])["application/json"]
        check(found, media["schema"], answer.json())
        return dict(answer.json())

    upload = {"data": fields, "files": {"file": ("in.jsonl", jsonl(batch_line("a"), {}))}}
    file = await checked("POST", "/v1/files", "/v1/files", **upload)
    one, own = f"/v1/files/{file['id']}", "/v1/files/{file_id}"
    assert "application/octet-stream" in content(paths[f"{own}/content"]["get"])
    await checked("GET", one, own)
    await checked("GET", "/v1/files", "/v1/files")
    body = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    batch = await checked("POST", "/v1/batches", "/v1/batches", json=body)
    path, own_batch = f"/v1/batches/{batch['id']}", "/v1/batches/{batch_id}"
    while (await checked("GET", path, own_batch))["status"] != "failed":  # with errors
        pass
    await checked("GET", "/v1/batches", "/v1/batches")
    await checked("DELETE", one, own)
