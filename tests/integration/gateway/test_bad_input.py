"""Bad input: OpenAI-shaped 4xx that names the field and the limit; the engine never sees it."""

import gzip
from importlib.metadata import version
from typing import Any

import httpx
import orjson
import pytest
from support.running_gateway import CHAT, Running, Start

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


def check(answer: Any, status: int, param: str | None = None, *named: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert "x-request-id" in answer.headers
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)
    if param is not None:
        assert error["param"] == param
    for text in named:
        assert text in error["message"]
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"messages": []}, "messages", "1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role", "poet"),
        ({"messages": [IMAGE]}, "messages[0].content[0]", "image_url"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content", "tool_calls"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"temperature": 2.5}, "temperature", "2.5"),
        ({"temperature": "hot"}, "temperature", "hot"),
        ({"top_p": 0}, "top_p", "0"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"max_tokens": 10**6}, "max_tokens", "512"),
        ({"n": 17}, "n", "16"),
        ({"n": 0}, "n", "16"),
        ({"seed": 2**63}, "seed", str(2**63 - 1)),
        ({"stop": 5}, "stop", "5"),
        ({"logit_bias": {"y": 1, "x": 1}}, "logit_bias", "'x'"),
        ({"logit_bias": {"9999": 1, "9998": 1}}, "logit_bias", "9999, 9998"),
        ({"max_completion_tokens": 10**6}, "max_completion_tokens", "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"tool_choice": {}}, "tool_choice", "tools"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"regex": "["}, "regex", "regex"),
        ({"ebnf": 5}, "ebnf", "text"),
        ({"ebnf": 'root ::= "a"', "regex": "a"}, "ebnf", "exclude"),
        ({"tools": [{"type": "mcp", "mcp": {"name": "x"}}]}, "tools[0]", "'mcp'"),
        ({"response_format": {"type": "yaml"}}, "response_format", "text"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "",
        ),
    ],
)
async def test_bad_field(
    running: Running, fields: dict[str, Any], param: str, named: str, stream: bool
) -> None:
    check(await running.chat(**{"stream": stream, **fields}), 400, param, named)
    assert running.worker.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [267]}, "prompt"),
        ({"prompt": [[-1]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"prompt": ["x"] * 20, "best_of": 7, "n": 2}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ["x"] * 20, "n": 16}, "prompt"),
    ],
)
async def test_bad_completion_field(running: Running, fields: dict[str, Any], param: str) -> None:
    check(await running.completion(**fields), 400, param)
    assert running.worker.requests == []


async def test_every_wrong_field_is_named_at_once(running: Running) -> None:
    fields = {"n": 17, "temperature": 9, "stop": 5, "stream_options": {}, "logit_bias": {"x": 1}}
    check(await running.chat(**fields), 400, "n", *(f"'{name}" for name in fields))
    check(await running.completion(**fields, prompt=5), 400, "n", *fields, "'prompt'")


async def test_a_schema_that_cannot_be_held_is_named_beside_wrong_fields(running: Running) -> None:
    bad = {"type": "object", "not": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": bad, "strict": True}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": bad}}
    where = "'response_format.json_schema.schema'"
    wrong = {"temperature": 9, "messages": []}
    for fields, params in (
        ({"response_format": form, **wrong}, ("'temperature'", "'messages'", where)),
        ({"tools": [tool], **wrong}, ("'temperature'", "'tools'", "'f'")),
        ({"tools": [{}], "response_format": form}, ("'tools[0]'", where)),
        ({"structured_outputs": {"regex": "("}, "n": 0}, ("'n'", "'structured_outputs.regex'")),
        ({"guided_json": bad, "response_format": form, "n": 0}, ("'n'", "exclude each other")),
        ({"response_format": form, "messages": [IMAGE]}, ("image_url", where)),
        ({"response_format": form, "max_tokens": 10**6}, ("max_tokens", where)),
        (
            {"response_format": form, "use_beam_search": True, "top_k": -9},
            ("'top_k'", where),
        ),
        ({"response_format": form, "use_beam_search": True, "bad_words": ["x"]}, (where,)),
    ):
        check(await running.chat(**fields), 400, None, *params)
    check(
        await running.completion(structured_outputs={"regex": "("}, prompt=5, best_of=0),
        400, "prompt", "'best_of'", "'structured_outputs.regex'",
    )  # fmt: skip
    sent = {
        "model": "tiny",
        "input": [{}],
        "text": {"format": {"type": "json_schema", "name": "x"}},
    }
    sent["text"]["format"]["schema"] = bad  # type: ignore[index]
    check(
        await running.http.post("/v1/responses", json=sent), 400, "input[0]", "text.format.schema"
    )
    answer = await running.http.post(
        "/v1/messages",
        json={"model": "tiny", "output_config": {"format": {"type": "json_schema", "schema": bad}}},
    )
    assert "output_config.format.schema" in answer.json()["error"]["message"]
    assert "max_tokens" in answer.json()["error"]["message"]
    assert running.worker.requests == []


async def test_a_form_is_not_looked_at_without_a_good_model(running: Running) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
    for model in ("x", 5):
        error = check(await running.chat(model=model, n=0, response_format=form), 400)
        assert "response_format" not in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 1}),
    ],
)
async def test_a_model_that_is_not_there_is_named_beside_a_wrong_field(
    running: Running, path: str, body: dict[str, Any]
) -> None:
    alone = await running.http.post(path, json={**body, "model": "nope"})
    assert alone.status_code == 404
    beside = await running.http.post(path, json={**body, "model": "nope", "temperature": 3})
    assert beside.status_code == 400
    for text in ("'temperature'", "'nope' does not exist here"):
        assert text in beside.json()["error"]["message"]


async def test_a_model_that_is_not_there_is_named_beside_wrong_tools(running: Running) -> None:
    sent = {"model": "nope", "tools": [{}], "tool_choice": "required"}
    check(await running.chat(**sent), 400, "tools[0]", "'nope' does not exist here")


async def test_an_embedding_model_that_is_not_there_is_named_beside_a_wrong_field(
    running: Running,
) -> None:
    sent = {"model": "nope", "input": 5}
    answer = await running.http.post("/v1/embeddings", json=sent)
    check(answer, 400, "input", "'input'", "'nope' does not exist here")


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/responses", {"input": 5}, "'input'"),
        ("/v1/responses", {"input": "x", "tool_choice": "bogus"}, "'tool_choice'"),
        ("/v1/responses", {"input": "x", "tool_choice": "required"}, "needs 'tools'"),
        ("/v1/responses", {"input": "x", "reasoning": {"effort": 5}}, "'reasoning.effort'"),
        ("/v1/messages", {"messages": [USER], "system": 5}, "'system'"),
        (
            "/v1/messages",
            {"messages": [USER, {"role": "user", "content": 5}]},
            "'messages[1].content'",
        ),
        ("/v1/messages", {"messages": [USER], "tool_choice": {"type": "any"}}, "needs 'tools'"),
        (
            "/v1/chat/completions",
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
            "'continue_final_message'",
        ),
        (
            "/v1/chat/completions",
            {"messages": [USER, {"role": "assistant"}]},
            "'messages[1].content' is required of an assistant",
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "'messages[0].content'"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, "'max_tokens'"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": False}, "'max_tokens'"),
        ("/v1/completions", {"prompt": ["x"] * 80, "n": 2}, "'prompt' has 80 prompts; with this n"),
        ("/v1/completions", {"prompt": ["x"] * 80, "best_of": 4}, "'prompt' has 80 prompts; with"),
        (
            "/v1/completions",
            {"prompt": "x", "use_beam_search": True, "structured_outputs": {"regex": "a"}},
            "'use_beam_search' is not supported with what binds the output",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [USER],
                "use_beam_search": True,
                "tools": [TOOL],
                "tool_choice": "required",
            },
            "'use_beam_search' is not supported with what binds the output",
        ),
    ],
)
async def test_what_was_found_late_is_named_beside_a_wrong_field(
    running: Running, path: str, fields: dict[str, Any], named: str
) -> None:
    sent = {"model": "tiny", "max_tokens": 1, "temperature": 3, **fields}
    answer = await running.http.post(path, json=sent)
    assert answer.status_code == 400
    for text in ("'temperature'", named):
        assert text in answer.json()["error"]["message"]


async def test_what_tokens_are_asked_of_is_named_at_once(running: Running) -> None:
    sent = {"messages": 5, "continue_final_message": True, "add_generation_prompt": True}
    answer = await running.http.post("/tokenize", json=sent)
    check(answer, 400, "messages", "'continue_final_message'")
    for sent in ({}, {"prompt": "x", "messages": [USER]}):
        answer = await running.http.post("/tokenize", json={**sent, "reasoning_effort": 5})
        check(answer, 400, "prompt", "either 'prompt' or 'messages'", "'reasoning_effort'")


async def test_what_the_model_cannot_serve_is_named_at_once(running: Running) -> None:
    ids = {"300": 1, "301": 1}
    fields = {"max_tokens": 10**6, "stop_token_ids": [400], "logit_bias": ids}
    named = ("max_tokens", "stop_token_ids", "400", "logit_bias", "300, 301")
    error = check(await running.chat(**fields), 400, "max_tokens", *named)
    assert error["code"] == "context_length_exceeded"
    error = check(
        await running.completion(min_tokens=9, max_tokens=None, prompt=[300], logit_bias=ids),
        400,
        "prompt",
    )
    assert "logit_bias" in error["message"]
    check(await running.completion(min_tokens=17, max_tokens=None), 400, "min_tokens", "16")
    assert running.worker.requests == []


async def test_prompt_over_the_context(running: Running) -> None:
    messages = [{"role": "user", "content": "word " * 500}]
    for stream in (False, True):
        answer = await running.chat(messages=messages, stream=stream)
        error = check(answer, 400, "messages", "512")
        assert error["code"] == "context_length_exceeded"
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize("raw", [b"{", b"", b"[1]", b"7", b"null", b'"x"', b'{"a":"\xff\xfe"}'])
async def test_body_that_is_no_object(running: Running, path: str, raw: bytes) -> None:
    answer = await running.http.post(
        path, content=raw, headers={"content-type": "application/json"}
    )
    check(answer, 400)


@pytest.mark.parametrize(
    "tools", [[{"bogus": 1}], [{"type": "web_search"}], [{"type": "function", "function": {}}]]
)
async def test_tokenize_refuses_the_tools_that_chat_refuses(
    running: Running, tools: list[Any]
) -> None:
    fields = {"messages": [USER], "tools": tools}
    answer = await running.http.post("/tokenize", json=fields)
    assert check(answer, 400) == check(await running.chat(**fields), 400)


async def test_form_is_refused(running: Running) -> None:
    check(await running.http.post("/v1/chat/completions", data={"model": "tiny"}), 415)


async def test_media_types_have_no_case(running: Running) -> None:
    for media_type in ("application/JSON", "Application/Problem+Json; charset=UTF-8"):
        answer = await running.http.post(
            "/tokenize", content=b'{"prompt":"x"}', headers={"content-type": media_type}
        )
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/files"])
async def test_a_compressed_body_is_refused(running: Running, path: str) -> None:
    body = gzip.compress(orjson.dumps({"model": "tiny", "prompt": "x"}))
    media_type = "application/json"
    if path == "/v1/files":
        media_type = "multipart/form-data; boundary=b"
    headers = {"content-type": media_type, "content-encoding": "gzip"}
    answer = await running.http.post(path, content=body, headers=headers)
    assert answer.status_code == 415
    assert "content-encoding is 'gzip'; send the body uncompressed" in answer.text
    plain = {"content-encoding": "identity"}
    answer = await running.http.post("/tokenize", json={"prompt": "x"}, headers=plain)
    assert answer.status_code == 200


async def test_unknown_model(running: Running) -> None:
    error = check(await running.chat(model="gpt-9"), 404, "model", "gpt-9")
    assert error["code"] == "model_not_found"
    check(await running.http.get("/v1/models/gpt-9"), 404, "model")


async def test_known_model(running: Running) -> None:
    listed = (await running.http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert (await running.http.get("/v1/models/tiny")).json() == listed["data"][0]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/nowhere", 404), ("GET", "/v1/completions", 405),
     ("POST", "/healthz", 405)],
)  # fmt: skip
async def test_unknown_route(running: Running, method: str, path: str, status: int) -> None:
    check(await running.http.request(method, path), status)


async def test_five_thousand_problems_make_a_small_answer(running: Running) -> None:
    answer = await running.chat(messages=[{"role": 5, "content": "x" * 100}] * 5000)
    check(answer, 400)
    assert len(answer.content) < 32_000


async def test_body_over_the_limit(start: Start) -> None:
    async with start(max_body_bytes=2000, body_timeout_seconds=3600) as running:
        check(await running.chat(messages=[{**USER, "content": "x" * 3000}]), 413, None, "2000")

        async def chunks() -> Any:
            yield orjson.dumps(CHAT)[:-1]
            yield b" " * 3000

        answer = await running.http.post(
            "/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"}
        )
        check(answer, 413, None, "2000")
        assert (await running.chat()).status_code == 200


@pytest.mark.parametrize("key", [None, "Bearer sk-wrong", "Basic x", "Bearer"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"),
     ("GET", "/v1/receipts/x"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/v1/x")],
)  # fmt: skip
async def test_wrong_key(running: Running, method: str, path: str, key: str | None) -> None:
    headers = {} if key is None else {"authorization": key}
    body = CHAT if method == "POST" else None
    async with httpx.AsyncClient(base_url=running.url, headers=headers) as stranger:
        answer = await stranger.request(method, path, json=body)
    error = check(answer, 401)
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/health", "/ping", "/version", "/metrics"]
)
async def test_health_needs_no_key(running: Running, path: str) -> None:
    async with httpx.AsyncClient(base_url=running.url) as stranger:
        assert (await stranger.get(path)).status_code == 200


async def test_health_follows_readiness(running: Running) -> None:
    running.gateway.health.set_ready("test", False, "asked to")
    try:
        for path in ("/readyz", "/health", "/ping"):
            assert (await running.http.get(path)).status_code == 503
    finally:
        running.gateway.health.set_ready("test", True)
    assert (await running.http.get("/version")).json() == {"version": version("pagoda-gateway")}


@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_fields_are_named_in_the_answer(running: Running, stream: bool) -> None:
    answer = await running.chat(stream=stream, zeta=1, alpha={"a": 1}, user="u", store=False)
    assert answer.status_code == 200
    assert answer.headers["x-pagoda-ignored"] == "alpha,zeta"
    assert "x-pagoda-ignored" not in (await running.chat(stream=stream)).headers
    bad = await running.chat(stream=stream, zeta=1, temperature=9)
    assert bad.headers["x-pagoda-ignored"] == "zeta"
    answer = await running.http.post("/detokenize", json={"tokens": [70.0], "zeta": 1})
    assert (answer.status_code, answer.headers["x-pagoda-ignored"]) == (200, "zeta")


async def test_integral_floats_are_integers(running: Running) -> None:
    answer = await running.chat(max_tokens=2.0, n=3.0, seed=0.0)
    assert answer.json()["usage"]["completion_tokens"] == 6
    assert type(answer.json()["usage"]["completion_tokens"]) is int
    (first,) = (r for r in running.worker.requests if r.sequence_index == 0)
    assert first.sampling.seed == 0


async def test_unknown_fields_change_nothing(running: Running) -> None:
    answer = await running.chat(
        brand_new={"a": [1]}, user="u", store=False, metadata={"k": "v"},
        messages=[{**USER, "annotations": []}], response_format={"type": "text"},
        parallel_tool_calls=True,
    )  # fmt: skip
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("sent", "echoed"), [("my-id_1", True), ("a b", False), ("x" * 65, False), ("", False)]
)
async def test_request_id(running: Running, sent: str, echoed: bool) -> None:
    answer = await running.http.post(
        "/v1/chat/completions", json=CHAT, headers={"x-request-id": sent}
    )
    assert (answer.headers["x-request-id"] == sent) is echoed
    assert len(answer.headers["x-pagoda-request-id"]) == 26


async def test_no_path_address_or_traceback_in_errors(running: Running) -> None:
    for answer in (await running.chat(temperature=9), await running.http.get("/v1/nowhere")):
        for leak in ("site-packages", "Traceback", "0x", "pagoda_gateway", "errors.pydantic"):
            assert leak not in answer.text


async def test_refused_request_gives_its_slot_back(start: Start) -> None:
    async with start(max_requests_in_flight=1) as running:
        for _ in range(3):
            check(await running.chat(temperature=9), 400, "temperature")
            check(await running.chat(model="gpt-9"), 404, "model")
        assert running.gateway.admission.num_requests == 0
        assert (await running.chat()).status_code == 200
