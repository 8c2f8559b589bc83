"""Completions: every form of prompt, order, usage, logprobs."""

from typing import Any

import pytest
from support.running_gateway import Running, Start
from support.scripted_worker import ScriptedWorker, tiny_card

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize(
    ("prompt", "num_prompts"),
    [("hello", 1), ([69, 70], 1), (["a", "b"], 2), ([[69], [70, 71], [72]], 3)],
)
async def test_prompt_forms_and_order(running: Running, prompt: Any, num_prompts: int) -> None:
    answer = (await running.completion(prompt=prompt, n=2, return_token_ids=True)).json()
    choices = answer["choices"]
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in choices] == list(range(2 * num_prompts))
    prompts = [choice["prompt_token_ids"] for choice in choices]
    assert prompts[0::2] == prompts[1::2]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(len(ids) for ids in prompts[0::2])
    assert usage["completion_tokens"] == 8 * len(choices)


async def test_streamed_texts_equal_the_whole(running: Running) -> None:
    fields = {"prompt": ["a", "b"], "n": 2, "seed": 3, "max_tokens": 8}
    whole = (await running.completion(**fields)).json()
    chunks = await running.events("/v1/completions", **fields)
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


async def test_prompt_samples_alike_in_a_batch_and_alone(running: Running) -> None:
    alone = (await running.completion(prompt="b", seed=3)).json()["choices"][0]["text"]
    batch = (await running.completion(prompt=["a", "b"], seed=3)).json()["choices"]
    assert batch[1]["text"] == alone


async def test_sixteen_tokens_by_default(running: Running) -> None:
    answer = (await running.completion(max_tokens=None)).json()
    assert answer["usage"]["completion_tokens"] == 16


async def test_text_prompts_begin_with_bos(running: Running) -> None:
    await running.completion()
    assert running.worker.requests[-1].prompt_token_ids[0] == 0
    await running.completion(add_special_tokens=False)
    assert running.worker.requests[-1].prompt_token_ids[0] != 0


async def test_echo_repeats_the_prompt(running: Running) -> None:
    fields = {"prompt": ["ab", "cd"], "echo": True, "max_tokens": 3}
    whole = (await running.completion(**fields)).json()["choices"]
    assert [choice["text"][:2] for choice in whole] == ["ab", "cd"]
    assert all(len(choice["text"]) == 5 for choice in whole)
    chunks = await running.events("/v1/completions", **fields)
    first = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == 1]
    assert "".join(first).startswith("cd")


@pytest.mark.parametrize("num_top", [0, 5])
async def test_logprobs(running: Running, num_top: int) -> None:
    logprobs = (await running.completion(logprobs=num_top)).json()["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {8}
    assert logprobs["text_offset"] == list(range(8))
    assert all(max(1, num_top) <= len(top) <= num_top + 1 for top in logprobs["top_logprobs"])


async def test_lists_of_tokens_reach_the_worker(running: Running) -> None:
    answer = await running.completion(
        allowed_token_ids=[69, 70], bad_words=["ab", " c"], logprob_token_ids=[71, 72, 73]
    )
    sampling = running.worker.requests[-1].sampling
    assert list(sampling.allowed_token_ids) == [69, 70]
    assert [list(word.token_ids) for word in sampling.bad_words] == [[69, 70], [71]]
    assert (list(sampling.logprob_token_ids), sampling.num_logprobs) == ([71, 72, 73], 3)
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert [len(top) for top in logprobs["top_logprobs"]] == [3] * 8


async def test_every_way_of_sampling_reaches_the_worker(running: Running) -> None:
    numbers = {
        "top_n_sigma": 1.5, "typical_p": 0.5, "xtc_threshold": 0.25, "xtc_probability": 0.75,
        "dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3, "lz_penalty": 0.25,
    }  # fmt: skip
    answer = await running.completion(**numbers, dry_sequence_breakers=["ell", "zq"])
    assert answer.status_code == 200
    assert "x-pagoda-ignored" not in answer.headers
    sampling = running.worker.requests[-1].sampling
    assert {name: getattr(sampling, name) for name in numbers} == numbers
    holding = set()
    for text in ("hell", "hello", "q"):  # what holds "ell", and the end of "zq"
        await running.completion(prompt=text)
        holding.add(running.worker.requests[-1].prompt_token_ids[-1])
    assert set(sampling.dry_sequence_breakers) == holding


async def test_what_is_wrong_with_sampling_is_said_at_once(running: Running) -> None:
    answer = await running.completion(typical_p=0, dry_base=0.5, dry_sequence_breakers=[""])
    error = answer.json()["error"]
    assert answer.status_code == 400
    for field in ("typical_p", "dry_base", "dry_sequence_breakers"):
        assert f"'{field}'" in error["message"]


@pytest.mark.parametrize("field", ["allowed_token_ids", "logprob_token_ids"])
async def test_tokens_outside_the_vocabulary_are_named(running: Running, field: str) -> None:
    answer = await running.completion(**{field: [69, 267]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert "267" in error["message"]


@pytest.mark.parametrize(("side", "text"), [(None, "ld"), ("left", "ld"), ("right", "hello w")])
async def test_prompts_are_cut(running: Running, side: str | None, text: str) -> None:
    fields = {"prompt": "hello world", "echo": True, "max_tokens": 1, "add_special_tokens": False}
    fields |= {"truncate_prompt_tokens": 2, "truncation_side": side}
    answer = (await running.completion(**fields)).json()
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["text"][:-1] == text


async def test_minus_one_cuts_to_the_context(running: Running) -> None:
    fields = {"truncate_prompt_tokens": -1, "max_tokens": 12}
    usage = (await running.completion(prompt=[69] * 600, **fields)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (500, 12)
    messages = [{"role": "user", "content": "a" * 600}]
    usage = (await running.chat(messages=messages, **fields)).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (500, 12)


async def test_a_repetition_ends_the_output_and_no_more_is_billed(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, token_at=lambda _request, index: 70 + index % 3)
    fields = {"max_tokens": 60, "repetition_detection": {"max_pattern_size": 4, "min_count": 3}}
    async with start(worker) as running:
        whole = await running.completion(**fields)
        chunks = await running.events("/v1/completions", prompt="hello", **fields)
        receipt = await running.receipt(whole)
        bad = await running.completion(repetition_detection={"max_pattern_size": 4})
        searched = await running.completion(**fields, use_beam_search=True, n=2)
    choice = whole.json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert whole.json()["usage"]["completion_tokens"] == receipt["output_tokens"] == 9
    assert receipt["finish_reasons"] == ["repetition"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "repetition"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert bad.json()["error"]["param"] == "repetition_detection.min_count"
    assert searched.json()["error"]["param"] == "repetition_detection"


async def test_text_of_tokens_that_the_model_has_not(start: Start, bus: Any) -> None:
    """Its vocabulary ends before its tokenizer's, as where somebody has added tokens."""
    async with start(ScriptedWorker(bus, tiny_card(vocab_size=266))) as running:
        for path, sent, param in (
            ("/v1/completions", {"prompt": "a or"}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "or"}]},
             "messages"),
            ("/v1/responses", {"input": "or"}, "input"),
            ("/v1/embeddings", {"input": ["a", "or"]}, "input"),
        ):  # fmt: skip
            answer = await running.http.post(path, json={"model": "tiny", **sent})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param)
            assert "has 'or' (token 266), which this model has not" in error["message"]
            assert "vocab_size is 266, and its tokenizer has 267 tokens" in error["message"]
        await running.completion(bad_words=["or", "ab"])
        words = running.worker.requests[-1].sampling.bad_words
        assert [list(word.token_ids) for word in words] == [[69, 70]]
