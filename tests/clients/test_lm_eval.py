"""lm-eval's client for completions: it scores prompts with echo and counts tokens by itself."""

import json

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

DEMO_MODEL = "demo/model"


def instances(kind, *arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=each, idx=i)
        for i, each in enumerate(arguments)
    ]


@pytest.fixture(params=[True, False], ids=["tokens", "text"])
def completions(server, request):
    return LocalCompletionsAPI(
        model=server.model,
        base_url=f"{server.openai_url}/completions",
        tokenizer=DEMO_MODEL,
        tokenized_requests=request.param,
        max_length=2048,
        num_concurrent=4,
        batch_size=4,
        max_retries=1,
    )


def test_likelier_endings_score_higher(completions):
    asked = instances("loglikelihood", ("I am", " a king"), ("I am", " zebra of"))
    (likely, _), (odd, _) = completions.loglikelihood(asked)
    assert odd < likely < 0


def test_rolling_likelihood(completions):
    (score,) = completions.loglikelihood_rolling(
        instances("loglikelihood_rolling", ("To be, or not to be",))
    )
    assert score < 0


def test_text_ends_before_the_stop(completions):
    (text,) = completions.generate_until(
        instances("generate_until", ("ROMEO:\n", {"until": ["e"], "max_gen_toks": 30}))
    )
    assert text
    assert "e" not in text


def test_chat(server):
    chat = LocalChatCompletion(
        model=server.model, base_url=f"{server.openai_url}/chat/completions", max_retries=1
    )
    question = JsonChatStr(json.dumps([{"role": "user", "content": "What news?"}]))
    (text,) = chat.generate_until(
        instances("generate_until", (question, {"until": ["e"], "max_gen_toks": 30}))
    )
    assert "e" not in text
