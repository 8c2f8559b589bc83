"""Chat completions, whole and streamed, against a scripted worker on real NATS."""

from typing import Any

import pytest
from support.running_gateway import CHAT, Running, Start, running_gateway, text_of
from support.scripted_worker import ScriptedWorker, spell
from support.tiny_tokenizer import EOS_ID, TEMPLATE, write_model_folder

from pagoda_gateway.text.tokenizer import ModelTokenizer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_whole_answer_has_openais_shape(running: Running) -> None:
    answer = (await running.chat()).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 8
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


async def test_stream_equals_the_whole_answer(running: Running) -> None:
    whole = (await running.chat(temperature=0)).json()
    chunks = await running.events(temperature=0)
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    roles = [chunk["choices"][0]["delta"].get("role") for chunk in chunks]
    assert roles == ["assistant"] + [None] * (len(chunks) - 1)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_no_usage_unless_asked_for(running: Running, options: Any) -> None:
    fields = {} if options is None else {"stream_options": options}
    assert all(chunk.get("usage") is None for chunk in await running.events(**fields))


async def test_usage_comes_last_and_once(running: Running) -> None:
    chunks = await running.events(stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_continuous_usage_rises(running: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await running.events(stream_options=options, max_tokens=10, min_tokens=10)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
    assert counts == sorted(set(counts))
    assert counts[-1] == chunks[-1]["usage"]["completion_tokens"] == 10
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


async def test_continuous_usage_alone_has_no_effect(running: Running) -> None:
    chunks = await running.events(stream_options={"continuous_usage_stats": True})
    assert all(chunk.get("usage") is None for chunk in chunks)


async def test_n_choices_have_their_own_text_and_one_end_each(running: Running) -> None:
    whole = (await running.chat(n=3, seed=5)).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole["usage"]["completion_tokens"] == 24
    chunks = await running.events(n=3, seed=5)
    assert [text_of(chunks, index) for index in range(3)] == texts
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


async def test_seed_repeats_and_the_first_choice_is_the_seeds_own(running: Running) -> None:
    def texts(answer: Any) -> list[str]:
        return [choice["message"]["content"] for choice in answer.json()["choices"]]

    one = texts(await running.chat(seed=7))
    assert texts(await running.chat(seed=7)) == one
    assert texts(await running.chat(seed=7, n=2))[0] == one[0]
    assert texts(await running.chat(seed=8)) != one
    assert texts(await running.chat()) != texts(await running.chat())


async def test_stop_string_over_token_borders(start: Start, bus: Any, model_folder: Any) -> None:
    tokenizer = ModelTokenizer.load(model_folder)
    ids = tokenizer.encode("one two\U0001f600 three four", add_special_tokens=False)
    worker = ScriptedWorker(bus, token_at=spell(ids), gate_index=len(ids) + 3)
    async with start(worker) as running:
        answer = await running.chat(stop=["\U0001f600 th", "never"], max_tokens=60)
        choice = answer.json()["choices"][0]
        assert choice["message"]["content"] == "one two"
        assert choice["finish_reason"] == "stop"
        assert choice["stop_reason"] == "\U0001f600 th"
        await worker.wait_until(lambda: bool(worker.cancels))
        assert worker.cancels[0].reason == "stop_string"
        await worker.wait_until(lambda: worker.num_running == 0)
        num_tokens = answer.json()["usage"]["completion_tokens"]
        assert tokenizer.decode(ids[:num_tokens], skip_special_tokens=True).endswith("th")
        chunks = await running.events(stop=["\U0001f600 th"], max_tokens=60)
        assert text_of(chunks) == "one two"
        whole = await running.chat(
            stop="\U0001f600 th", include_stop_str_in_output=True, max_tokens=60
        )
        assert whole.json()["choices"][0]["message"]["content"] == "one two\U0001f600 th"


async def test_eos_ends_and_ignore_eos_does_not(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, token_at=spell([69, 70, 1]))) as running:
        stopped = (await running.chat()).json()
        assert stopped["choices"][0]["message"]["content"] == "ab"
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert stopped["choices"][0]["stop_reason"] is None  # as vLLM has it; SGLang's says which
        assert stopped["choices"][0]["matched_stop"] == 1
        assert stopped["usage"]["completion_tokens"] == 3
        ignored = (await running.chat(ignore_eos=True)).json()
        assert ignored["choices"][0]["finish_reason"] == "length"
        assert (await running.chat(min_tokens=5)).json()["usage"]["completion_tokens"] == 6


async def test_what_ends_a_message_is_not_among_its_log_probabilities(
    start: Start, bus: Any
) -> None:
    """Clients join these to the message's text."""

    def names(choice: dict[str, Any]) -> list[str]:
        return [entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]]

    async with start(ScriptedWorker(bus, token_at=spell([69, 70, 1]))) as running:
        shown = {"include_stop_str_in_output": True}
        for fields in (
            {}, {"stop_token_ids": [70]}, {"max_tokens": 2}, shown,
            {"stop_token_ids": [70], **shown}, {"skip_special_tokens": False, **shown},
        ):  # fmt: skip
            asked: dict[str, Any] = {"logprobs": True, **fields}
            whole = (await running.chat(**asked)).json()["choices"][0]
            chunks = [chunk["choices"][0] for chunk in await running.events(**asked)]
            assert "".join(names(whole)) == whole["message"]["content"] != ""
            for chunk in chunks:
                assert "".join(names(chunk)) == chunk["delta"].get("content", "")
        running.worker.token_at = spell([1])
        assert (await running.chat(logprobs=True)).json()["choices"][0]["logprobs"] == {
            "content": [], "refusal": None,
        }  # fmt: skip


async def test_stop_token_ids_have_no_text(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, token_at=spell([69, 70, 71]))) as running:
        choice = (await running.chat(stop_token_ids=[70])).json()["choices"][0]
        assert (choice["message"]["content"], choice["stop_reason"]) == ("a", 70)
        assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", 70)
        kept = {"stop_token_ids": [70], "include_stop_str_in_output": True}
        whole = (await running.chat(**kept)).json()["choices"][0]
        assert whole["message"]["content"] == text_of(await running.events(**kept)) == "ab"
        # Before min_tokens it ends nothing, and is text as any other.
        running.worker.token_at = spell([70, 70, 71, 70])
        answer = (await running.chat(stop_token_ids=[70], min_tokens=2)).json()
        assert answer["choices"][0]["message"]["content"] == "bbc"
        assert answer["usage"]["completion_tokens"] == 4
        ignored = {"stop_token_ids": [70], "ignore_eos": True}  # which is about the model's own
        assert (await running.chat(**ignored)).json()["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("num_top", [0, 5])
async def test_logprobs(running: Running, num_top: int) -> None:
    answer = (await running.chat(logprobs=True, top_logprobs=num_top, temperature=0)).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert set(logprobs) == {"content", "refusal"}
    assert len(logprobs["content"]) == answer["usage"]["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == num_top for entry in logprobs["content"])
    spelled = b"".join(bytes(entry["bytes"]) for entry in logprobs["content"])
    assert spelled.decode() == answer["choices"][0]["message"]["content"]
    chunks = await running.events(logprobs=True, top_logprobs=num_top, temperature=0)
    streamed = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == logprobs["content"]


async def test_bias_reaches_the_engine(running: Running) -> None:
    answer = (await running.chat(logit_bias={"70": 100})).json()
    assert answer["choices"][0]["message"]["content"] == "b" * 8


async def test_cached_tokens_are_reported_and_bounded(start: Start, bus: Any) -> None:
    async with start(ScriptedWorker(bus, cached=4)) as running:
        usage = (await running.chat(n=2)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 4


async def test_max_tokens_defaults_to_the_rest_of_the_context(running: Running) -> None:
    await running.chat(max_tokens=None, stop=["e"])
    request = running.worker.requests[-1]
    assert request.sampling.max_tokens == 512 - len(request.prompt_token_ids)
    await running.chat(max_tokens=None, max_completion_tokens=3)
    assert running.worker.requests[-1].sampling.max_tokens == 3


async def test_the_worker_gets_everything_it_needs(running: Running) -> None:
    await running.chat(messages=[{"role": "user", "content": "x" * 40}], temperature=0.5, top_k=7)
    request = running.worker.requests[-1]
    assert request.gateway_id == running.gateway.gateway_id
    assert len(request.cache_root) == 16
    assert len(request.block_hashes) == 16 * (len(request.prompt_token_ids) // 16) > 0
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 7)
    asked = running.router.requests[-1]
    assert asked.block_hashes == request.block_hashes
    assert asked.num_prompt_tokens == len(request.prompt_token_ids)


async def test_return_token_ids(running: Running) -> None:
    answer = (await running.chat(return_token_ids=True)).json()
    prompt = list(running.worker.requests[-1].prompt_token_ids)
    assert answer["prompt_token_ids"] == prompt
    assert len(answer["choices"][0]["token_ids"]) == 8
    assert "prompt_token_ids" not in answer["choices"][0]
    for n in (2, 1):
        chunks = await running.events(return_token_ids=True, n=n)
        assert chunks[0]["prompt_token_ids"] == prompt
        assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    assert sum(len(chunk["choices"][0]["token_ids"]) for chunk in chunks) == 8


async def test_cache_salt_keeps_equal_prompts_apart(running: Running) -> None:
    messages = [{"role": "user", "content": "word " * 20}]
    for salt in (None, "a", "b", "a"):
        assert (await running.chat(messages=messages, cache_salt=salt)).status_code == 200
    hashes = [request.block_hashes for request in running.worker.requests]
    assert len(set(hashes)) == 3
    assert hashes[1] == hashes[3]
    asked = [request.block_hashes for request in running.router.requests]
    assert asked == hashes


async def test_tokenize_counts_what_usage_counts(running: Running) -> None:
    count = await running.http.post(
        "/tokenize", json={"model": "tiny", "messages": CHAT["messages"]}
    )
    assert count.json()["count"] == (await running.chat()).json()["usage"]["prompt_tokens"]
    tokens = (await running.http.post("/tokenize", json={"prompt": "hello \U0001f600"})).json()
    text = await running.http.post("/detokenize", json={"tokens": tokens["tokens"]})
    assert text.json()["prompt"] == "<|bos|>hello \U0001f600"


async def test_continue_final_message_with_echo(running: Running) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "So it"}]
    fields = {"messages": messages, "echo": True, "continue_final_message": True}
    content = (await running.chat(**fields)).json()["choices"][0]["message"]["content"]
    assert content.startswith("So it")
    assert len(content) == 5 + 8
    explicit = {**fields, "add_generation_prompt": False, "temperature": 0}
    whole = (await running.chat(**explicit)).json()["choices"][0]["message"]["content"]
    assert text_of(await running.events(**explicit)) == whole


THINKS: dict[str, Any] = {"continue_final_message": True, "max_tokens": 60, "temperature": 0}


@pytest.mark.parametrize(
    ("begun", "said", "thought", "content"),
    [
        ("<think>\nhm, " + "well, " * 30, "yes</think>\n\nSo it", "yes", "So it"),
        ("<think>\nhm, ", "yes", "yes", ""),
        ("<think>hm</think>So", " it <think>is</think>", None, " it <think>is</think>"),
        ("So", " it is", None, " it is"),
    ],
)
async def test_what_goes_on_within_reasoning_is_split_as_a_whole_answer(
    nats_common: Any, bus: Any, tmp_path: Any, begun: str, said: str, thought: Any, content: str
) -> None:
    template = TEMPLATE + "{# a model that writes </think> #}"
    folder = write_model_folder(tmp_path / "thinks", chat_template=template)
    ids = ModelTokenizer.load(folder).encode(said, add_special_tokens=False)
    worker = ScriptedWorker(bus, token_at=spell([*ids, EOS_ID]))
    messages = [*CHAT["messages"], {"role": "assistant", "content": begun}]
    fields = {**THINKS, "messages": messages}
    async with running_gateway(nats_common, bus, folder, worker) as running:
        whole = (await running.chat(**fields)).json()
        echoed = (await running.chat(**fields, echo=True)).json()
        chunks = await running.events(**fields)
        prefilled = await running.http.post(
            "/v1/messages", json={"model": "tiny", "messages": messages, "max_tokens": 60}
        )
        bound = {"structured_outputs": {"regex": "x"}}
        await running.chat(**fields, **bound)
        grammar = running.worker.requests[-1].sampling.grammar
    message = whole["choices"][0]["message"]
    assert message.get("reasoning_content") == thought
    assert message["content"] == content
    num_thoughts = len(thought) + (not content) if thought else 0  # its end is thought, too
    details = whole["usage"].get("completion_tokens_details", {"reasoning_tokens": 0})
    assert details["reasoning_tokens"] == num_thoughts
    assert text_of(chunks) == content
    assert thought_of(chunks) == (thought or "")
    blocks = {block["type"]: block for block in prefilled.json()["content"]}
    assert blocks.get("thinking", {"thinking": None})["thinking"] == thought
    repeated = echoed["choices"][0]["message"]
    if thought is not None:
        assert repeated["reasoning_content"] == begun.removeprefix("<think>") + thought
        assert repeated["content"] == content
    assert ("think_text" in grammar) is ("</think>" not in begun)


def thought_of(chunks: list[Any]) -> str:
    """Return the reasoning that chat chunks make."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("reasoning_content") or "" for delta in deltas)


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ({"content": [{"type": "text", "text": "So "}, {"type": "text", "text": "it"}]}, "So \nit"),
        ({"content": None, "refusal": "no"}, "no"),
        ({"content": None}, ""),
    ],
)
async def test_echo_is_the_text_that_was_rendered(
    running: Running, last: dict[str, Any], text: str
) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", **last}]
    content = (await running.chat(messages=messages, echo=True)).json()["choices"][0]["message"]
    assert content["content"][:-8] == text
    assert text_of(await running.events(messages=messages, echo=True))[:-8] == text


async def test_documents_are_for_the_template(nats_common: Any, bus: Any, tmp_path: Any) -> None:
    template = "{{ messages[0].content }}{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
    folder = write_model_folder(tmp_path / "tiny", chat_template=template)
    async with running_gateway(nats_common, bus, folder, ScriptedWorker(bus)) as running:
        plain = (await running.chat()).json()["usage"]["prompt_tokens"]
        documents = [{"text": "ab"}]
        answer = await running.chat(documents=documents)
        assert answer.json()["usage"]["prompt_tokens"] == plain + 4
        assert "x-pagoda-ignored" not in answer.headers
        fields = {"messages": CHAT["messages"], "documents": documents}
        counted = await running.http.post("/tokenize", json=fields)
        assert counted.json()["count"] == plain + 4
        assert "x-pagoda-ignored" not in counted.headers


async def test_tokenize_counts_what_a_chat_says_of_tools_and_effort(
    nats_common: Any, bus: Any, tmp_path: Any
) -> None:
    template = (
        "{{ tools|length if tools else 'none' }}.{{ reasoning_effort }}.{{ enable_thinking }}"
    )
    folder = write_model_folder(tmp_path / "tiny", chat_template=template)
    tool = {"type": "function", "function": {"name": "f"}}
    async with running_gateway(nats_common, bus, folder, ScriptedWorker(bus)) as running:
        for fields in (
            {"reasoning_effort": "none"},
            {"tools": [tool], "tool_choice": "none"},
            {"tools": [tool], "tool_choice": "required", "reasoning_effort": "high"},
        ):
            used = (await running.chat(**fields)).json()["usage"]["prompt_tokens"]
            sent = {"messages": CHAT["messages"], **fields}
            counted = await running.http.post("/tokenize", json=sent)
            assert counted.json()["count"] == used
            assert "x-pagoda-ignored" not in counted.headers
        lonely = await running.http.post("/tokenize", json={**sent, "tools": None})
        assert lonely.json()["error"]["param"] == "tool_choice"


async def test_no_effort_is_no_thinking(nats_common: Any, bus: Any, tmp_path: Any) -> None:
    template = "{{ enable_thinking }}.{{ reasoning_effort }}"
    folder = write_model_folder(tmp_path / "tiny", chat_template=template)
    async with running_gateway(nats_common, bus, folder, ScriptedWorker(bus)) as running:
        await running.chat(reasoning_effort="low")
        await running.chat(reasoning_effort="none")
        own = {"enable_thinking": True}
        await running.chat(reasoning_effort="none", chat_template_kwargs=own)
        prompts = running.gateway.texts["tiny"].prompts
        texts = [
            await prompts.text_of(list(request.prompt_token_ids))
            for request in running.worker.requests
        ]
    assert texts == [".low", "False.none", "True.none"]


async def test_offered_tools_are_shown_by_the_template_for_tools(
    nats_common: Any, bus: Any, tmp_path: Any
) -> None:
    named = [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }}<tool_call>"},
    ]
    folder = write_model_folder(tmp_path / "tiny", chat_template=named)
    tool = {"type": "function", "function": {"name": "look"}}
    async with running_gateway(nats_common, bus, folder, ScriptedWorker(bus)) as running:
        await running.chat()
        await running.chat(tools=[tool])
        await running.chat(tools=[tool], tool_choice="none")
        prompts = running.gateway.texts["tiny"].prompts
        texts = [
            prompts.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=True)
            for request in running.worker.requests
        ]
    assert texts == ["hello world", "look<tool_call>", "hello world"]
