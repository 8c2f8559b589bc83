"""What schemas check beyond types and ranges."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError
from pagoda_gateway.http.body import validated
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
LIMITS = {"max_n": 16, "max_sequences": 128}


def chat(**fields: Any) -> ChatBody:
    return validated({**CHAT, **fields}, ChatBody, LIMITS)


def completion(**fields: Any) -> CompletionBody:
    return validated({"model": "m", "prompt": "x", **fields}, CompletionBody, LIMITS)


def refused(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    return caught.value


@pytest.mark.parametrize("stop", [5, ["a", 5], ["a"] * 5, [""], "", ["x" * 1025], {"a": 1}])
def test_bad_stop_strings(stop: object) -> None:
    assert refused(stop=stop).param == "stop"


def test_stream_options_need_a_stream() -> None:
    assert refused(stream_options={}).param == "stream_options"
    assert chat(stream_options={}, stream=True).stream_options is not None


def test_logit_bias_names_every_bad_entry() -> None:
    bias = {"5": 1, "x": 1, "-1": 1, "7": 101, "8": "much", "9": True}
    error = refused(logit_bias=bias)
    for part in ("'x'", "'-1'", "101", "'much'", "of token 9"):
        assert part in str(error)
    assert "4097" in str(refused(logit_bias={str(i): 1 for i in range(4097)}))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        (
            "metadata",
            {"a": 5, "b": "x", "c": 6, "d" * 65: ""},
            ("'metadata.a'", "'metadata.c'", "65"),
        ),
        ("bad_words", ["", "  ", "x", "y" * 257], ("'', of 0", "'  ', of 2", "of 257")),
        ("stop", ["", "x", "y" * 1025], ("of 0 characters", "of 1025 characters")),
        ("dry_sequence_breakers", ["", "x", "y" * 65], ("'', of 0", "of 65 characters")),
    ],
)
def test_every_bad_entry_is_named(field: str, value: Any, named: tuple[str, ...]) -> None:
    message = str(refused(**{field: value}))
    assert [text for text in named if text not in message] == []


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_min_tokens_within_what_is_asked_for(field: str) -> None:
    error = refused(min_tokens=6, **{field: 5})
    assert error.param == "min_tokens"
    assert f"{field} 5" in str(error)
    assert chat(min_tokens=5, **{field: 5}).min_tokens == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "f"}]},
        {"function_call": "auto"},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"web_search_options": {}},
        {"moderation": {"model": "omni-moderation-latest"}},
        {"chat_template": "{{ messages }}"},
        {"logits_processors": ["ban"]},
    ],
)
def test_fields_that_would_change_the_answer_are_refused(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert isinstance(error, UnsupportedFieldError)
    assert error.param == next(iter(fields))


def test_former_tools_name_what_replaces_them() -> None:
    assert "use 'tools'" in str(refused(functions=[{"name": "f"}]))


@pytest.mark.parametrize("kind", ["web_search", "mcp"])
def test_tools_that_are_no_functions_are_refused_by_their_type(kind: str) -> None:
    error = refused(tools=[{"type": kind, kind: {"name": "x"}}])
    assert isinstance(error, UnsupportedFieldError)
    assert error.param == "tools[0]"
    assert f"type '{kind}'" in str(error)
    assert "function" in str(error)


def test_a_prompt_of_embeddings_is_refused() -> None:
    with pytest.raises(UnsupportedFieldError, match="prompt_embeds"):
        completion(prompt_embeds="x")


@pytest.mark.parametrize(
    "fields",
    [
        {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False},
        {"early_stopping": "never"},
        {"response_format": {"type": "text"}},
        {"bad_words": [], "dry_sequence_breakers": []},
        {"allowed_token_ids": None, "truncate_prompt_tokens": None},
        {"logprob_token_ids": []},
        {"guided_regex": ""},
        {"top_logprobs": 0},
        {"top_logprobs": 0, "logprobs": False},
        {"priority": 0},
        {"priority": -1000},
        {"priority": 1000},
        {"functions": [], "function_call": None},
        {"modalities": ["text"], "audio": None, "chat_template": ""},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"reasoning_effort": "low", "verbosity": "low", "prompt_cache_key": "k"},
        {"safety_identifier": "s", "cache_salt": "s" * 1024},
    ],
)
def test_values_that_ask_for_nothing_pass(fields: dict[str, Any]) -> None:
    assert chat(**fields).model == "m"


@pytest.mark.parametrize(
    "fields",
    [
        {"bad_words": [""]},
        {"bad_words": ["a", " "]},
        {"bad_words": ["x" * 257]},
        {"bad_words": ["x"] * 129},
        {"dry_sequence_breakers": [""]},
        {"dry_sequence_breakers": ["x" * 65]},
        {"dry_sequence_breakers": ["x"] * 33},
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncation_side": "middle"},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [1] * 16_385},
        {"logprob_token_ids": [1] * 129},
    ],
)
def test_lists_and_cuts_within_their_limits(fields: dict[str, Any]) -> None:
    assert refused(**fields).param == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [{"prompt_logprobs": -1}, {"prompt_logprobs": 21}, {"prompt_logprobs": 0, "stream": True}],
)
def test_prompt_logprobs_within_their_limits(fields: dict[str, Any]) -> None:
    assert refused(**fields).param == "prompt_logprobs"


def test_top_logprobs_need_logprobs() -> None:
    assert refused(top_logprobs=1).param == "top_logprobs"
    assert chat(top_logprobs=0).top_logprobs is None
    assert chat(top_logprobs=0, logprobs=True).top_logprobs == 0


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"best_of": 1, "n": 2}, InvalidRequestError),
        ({"best_of": 3, "n": 2, "stream": True}, InvalidRequestError),
        ({"best_of": 2, "stream": True}, InvalidRequestError),
        ({"suffix": "x"}, UnsupportedFieldError),
    ],
)
def test_fields_of_completions(fields: dict[str, Any], kind: type[InvalidRequestError]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(**fields)
    assert type(caught.value) is kind
    assert caught.value.param == next(iter(fields))
    assert all(name in str(caught.value) for name in fields)


def test_neutral_fields_of_completions() -> None:
    assert completion(best_of=2, n=2, suffix="", echo=True, stream=True).n == 2
    assert completion(best_of=3, n=2, stream=False).best_of == 3


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], 5, [1.5], [True], {"a": 1}, [["a"]], ["a", None]]
)
def test_bad_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_integral_floats_are_integers() -> None:
    body = completion(
        max_tokens=2.0, n=15.0, seed=-0.0, top_k=-1.0, stop_token_ids=[3.0, 4],
        prompt=[[1.0, 2], [3.0]], temperature=1,
    )  # fmt: skip
    assert (body.max_tokens, body.n, body.seed, body.top_k) == (2, 15, 0, -1)
    assert body.stop_token_ids == [3, 4]
    assert body.prompt == [[1, 2], [3]]
    values = (body.max_tokens, body.seed, *(body.stop_token_ids or ()), body.prompt[0][0])
    assert {type(value) for value in values} == {int}
    assert type(body.temperature) is float


@pytest.mark.parametrize("value", [2.5, True, "2", 1e300])
@pytest.mark.parametrize("field", ["max_tokens", "n", "seed", "min_tokens", "top_k"])
def test_nothing_else_is_an_integer(field: str, value: object) -> None:
    assert refused(**{field: value}).param == field


@pytest.mark.parametrize("seed", [-(2.0**63), 2.0**63, 1e300, 2**63, -(2**63) - 1])
def test_seed_outside_int64_names_the_bound(seed: float) -> None:
    assert str(2**63 - 1) in str(refused(seed=seed)) or str(-(2**63)) in str(refused(seed=seed))
