"""The official OpenAI client against the stack, the same script in both topologies."""

import openai
import pytest
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUESTION = [{"role": "user", "content": "What news from the battle, good my lord?"}]


def chat(stack: Stack, **options):
    options = {"max_tokens": 32, "temperature": 0, "messages": QUESTION, **options}
    return stack.openai().chat.completions.create(model=stack.model, **options)


def test_stream_equals_non_stream(any_stack: Stack) -> None:
    whole = chat(any_stack)
    chunks = list(chat(any_stack, stream=True))
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks)
        == whole.choices[0].message.content
    )
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_usage_counts_every_token_once(any_stack: Stack) -> None:
    chunks = list(
        chat(
            any_stack,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=12,
            extra_body={"ignore_eos": True},
        )
    )
    usage = chunks[-1].usage
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_second_ask_reports_cached_tokens(any_stack: Stack) -> None:
    messages = [{"role": "user", "content": "Speak of the crown and of the sword, " * 8}]
    chat(any_stack, messages=messages)
    usage = chat(any_stack, messages=messages).usage
    assert usage.prompt_tokens_details.cached_tokens > 0
    assert usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_stop_string_ends_before_the_match(any_stack: Stack) -> None:
    text = chat(any_stack).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = chat(any_stack, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(stop)]


def test_seed_repeats_and_seeds_differ(any_stack: Stack) -> None:
    texts = [
        chat(any_stack, temperature=1, seed=seed).choices[0].message.content for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_logprobs_name_the_greedy_token_first(any_stack: Stack) -> None:
    choice = chat(any_stack, logprobs=True, top_logprobs=3, max_tokens=6).choices[0]
    assert len(choice.logprobs.content) == 6
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob <= 0


def test_two_choices_have_their_own_index(any_stack: Stack) -> None:
    answer = chat(any_stack, n=2, temperature=1, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content


def test_completion_takes_token_ids_and_returns_them(any_stack: Stack) -> None:
    answer = any_stack.openai().completions.create(
        model=any_stack.model,
        prompt=[10, 20, 30, 40],
        max_tokens=5,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    assert len(answer.choices[0].model_extra["token_ids"]) == 5
    assert answer.usage.prompt_tokens == 4


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "word " * 5000}]},
            openai.BadRequestError,
            "2048",
        ),
    ],
)
def test_bad_input_names_the_field(any_stack: Stack, options, error, named) -> None:
    with pytest.raises(error) as caught:
        chat(any_stack, **options)
    assert named in str(caught.value)


def test_unknown_model_is_not_found(any_stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        any_stack.openai().chat.completions.create(model="no-such-model", messages=QUESTION)


def test_wrong_key_is_refused(any_stack: Stack) -> None:
    client = openai.OpenAI(base_url=f"{any_stack.url}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_receipt_agrees_with_usage(any_stack: Stack) -> None:
    with any_stack.http() as http:
        body = {"model": any_stack.model, "messages": QUESTION, "max_tokens": 9, "ignore_eos": True}
        answer = http.post("/v1/chat/completions", json=body)
        receipt = http.get(f"/v1/receipts/{answer.headers['x-request-id']}").json()
    usage = answer.json()["usage"]
    assert receipt["prompt_tokens"] == usage["prompt_tokens"]
    assert receipt["output_tokens"] == usage["completion_tokens"] == 9
