"""Bodies: what is wrong is named, however wrong it is."""

import orjson
import pytest
from pydantic import ValidationError

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.http.body import parse_object, validated
from pagoda_gateway.http.further_problems import MAX_ITEMS
from pagoda_gateway.json_limits import MAX_MEMBERS
from pagoda_gateway.openai.schemas.chat import ChatBody

GOOD = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def fails(raw: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        validated(parse_object(raw), ChatBody, {"max_n": 16})
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b"1", b"null", b'"text"', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"NaN"],
)
def test_no_json_object(raw: bytes) -> None:
    assert fails(raw).status == 400


def test_an_object_has_so_many_members_at_most() -> None:
    value = GOOD | {f"x{i}": 1 for i in range(MAX_MEMBERS - len(GOOD))}
    assert parse_object(orjson.dumps(value)) == value
    assert "1025 members at its top; the limit is 1024" in str(
        fails(orjson.dumps({**value, "y": 1}))
    )


@pytest.mark.parametrize(
    ("field", "value", "named", "limit"),
    [
        ("temperature", -0.1, "temperature", "0"),
        ("temperature", 2.1, "temperature", "2"),
        ("temperature", "hot", "temperature", "number"),
        ("temperature", True, "temperature", "number"),
        ("top_p", 0, "top_p", "0"),
        ("top_p", 1.5, "top_p", "1"),
        ("min_p", 1.5, "min_p", "1"),
        ("top_n_sigma", -2, "top_n_sigma", "-1"),
        ("typical_p", 0, "typical_p", "0"),
        ("xtc_threshold", 1.5, "xtc_threshold", "1"),
        ("xtc_probability", -0.1, "xtc_probability", "0"),
        ("dry_multiplier", -1, "dry_multiplier", "0"),
        ("dry_base", 0.5, "dry_base", "1"),
        ("dry_allowed_length", 51, "dry_allowed_length", "50"),
        ("dry_sequence_breakers", "\n", "dry_sequence_breakers", "list"),
        ("dry_sequence_breakers", ["x"] * 33, "dry_sequence_breakers", "32"),
        ("lz_penalty", 2.5, "lz_penalty", "2"),
        ("frequency_penalty", 2.5, "frequency_penalty", "2"),
        ("presence_penalty", -3, "presence_penalty", "-2"),
        ("repetition_penalty", 0, "repetition_penalty", "0"),
        ("max_tokens", 0, "max_tokens", "1"),
        ("max_completion_tokens", -1, "max_completion_tokens", "1"),
        ("seed", 2**63, "seed", str(2**63 - 1)),
        ("seed", 2**70, "seed", str(2**63 - 1)),
        ("top_logprobs", 21, "top_logprobs", "20"),
        ("n", "two", "n", "integer"),
        ("messages", [], "messages", "1"),
        ("messages", "hello", "messages", "list"),
        ("messages", [{"content": "x"}], "messages[0].role", "required"),
        ("stream", "yes", "stream", "boolean"),
        ("logit_bias", [1], "logit_bias", "dictionary"),
        ("model", 5, "model", "string"),
    ],
)
def test_names_field_value_and_limit(field: str, value: object, named: str, limit: str) -> None:
    error = fails(
        orjson.dumps({**GOOD, field: value})
        if not isinstance(value, int) or abs(value) < 2**64
        else b'{"model":"m","messages":[{"role":"user","content":"x"}],"%s":%d}'
        % (field.encode(), value)
    )
    assert error.param == named
    assert f"'{named}'" in str(error)
    assert limit in str(error)


def test_unknown_fields_are_ignored() -> None:
    body = validated({**GOOD, "new_field": {"a": 1}}, ChatBody)
    assert body.model == "m"


def test_every_wrong_field_is_named_at_once() -> None:
    wrong = {
        "temperature": 9, "n": 17, "stop": 5, "stream_options": {}, "logit_bias": {"x": 1},
        "min_tokens": 6, "max_completion_tokens": 5, "seed": 2**63, "bad_words": [""],
        "top_logprobs": 3, "stream": "yes", "stop_token_ids": [1, "a"], "cache_salt": "",
        "priority": 1001, "functions": [1], "max_tokens": 0, "typical_p": 2, "lz_penalty": -1,
        "dry_sequence_breakers": [""], "xtc_probability": 3,
    }  # fmt: skip
    error = fails(orjson.dumps({**GOOD, **wrong}))
    named = set(wrong) - {"max_completion_tokens", "stream_options"}  # they may be right
    assert [name for name in named if f"'{name}" not in str(error)] == []
    assert "more problems" not in str(error)
    del wrong["stream"]
    error = fails(orjson.dumps({**GOOD, **wrong}))
    assert "'stream_options'" in str(error)
    assert error.param == "n"


def test_an_error_of_wide_characters_is_small() -> None:
    wrong = dict.fromkeys(set(ChatBody.model_fields) - {"messages"}, "\u6f22" * 300)
    assert len(orjson.dumps(fails(orjson.dumps({**GOOD, **wrong})).body())) < 32_000


def test_many_problems_make_a_small_error() -> None:
    messages = [{"role": 5, "content": "x" * 2000} for _ in range(5000)]
    error = fails(orjson.dumps({**GOOD, "messages": messages}))
    assert len(orjson.dumps(error.body())) < 32_000
    assert error.param == "messages[0].role"


def named(**fields: object) -> str:
    return str(fails(orjson.dumps({**GOOD, **fields})))


def test_wrong_items_are_named_beside_wrong_fields() -> None:
    messages = [{"role": "alien"}, *GOOD["messages"], {"content": 5}, 7]
    message = named(n=0, messages=messages, stop_token_ids=["a", 1, "b"])
    for name in ("n", "messages[0].role", "messages[2].role", "messages[2].content",
                 "messages[3]", "stop_token_ids[0]", "stop_token_ids[2]"):  # fmt: skip
        assert f"'{name}'" in message
    assert "messages[1]" not in message


def test_bad_tools_do_not_hide_each_other_nor_the_choice() -> None:
    tools = [
        {"type": "function", "function": {"name": "a", "strict": "yes", "description": 5}},
        {"type": "function", "function": {"name": "b"}},
        {"type": "function", "function": {"name": "b"}},
        {"type": "function", "function": {"name": "c", "parameters": []}},
        {},
    ]
    message = named(tools=tools, tool_choice="any")
    for name in ("tools[0].function.strict", "tools[0].function.description",
                 "tools[2].function.name", "tools[3].function.parameters", "tools[4]",
                 "tool_choice"):  # fmt: skip
        assert f"'{name}'" in message
    assert "tools[1]" not in message


def test_what_describes_a_schema_has_types() -> None:
    described = {"name": 5, "strict": "yes", "description": [], "schema": {}}
    message = named(response_format={"type": "json_schema", "json_schema": described})
    for name in ("name", "strict", "description"):
        assert f"'response_format.json_schema.{name}'" in message


@pytest.mark.parametrize(
    ("field", "item"),
    [("tools", {}), ("messages", {"role": "alien"}), ("messages", None), ("stop_token_ids", "a")],
)
def test_a_few_of_many_wrong_items_are_named(field: str, item: object) -> None:
    message = named(**{field: [item] * 100})
    assert f"'{field}[15]" in message
    assert f"'{field}[16]" not in message
    assert "and 84 more" in message or "those from [16] on are not checked" in message


def test_no_item_of_a_huge_list_but_the_first_is_named() -> None:
    message = named(stop_token_ids=["a"] * (MAX_ITEMS + 1))
    assert "'stop_token_ids[0]'" in message
    assert "'stop_token_ids[1]'" not in message


@pytest.mark.parametrize("field", ["tools", "bad_words", "stop_token_ids", "messages"])
def test_checking_ends_at_the_first_wrong_item(field: str) -> None:
    value = {**GOOD, field: [None] * 1000}
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate(value)
    assert caught.value.error_count() == 1


def test_what_was_wrong_is_no_cause_that_traces_would_print() -> None:
    assert fails(orjson.dumps({**GOOD, "tools": [1]})).__suppress_context__


def test_long_values_are_cut() -> None:
    error = fails(orjson.dumps({**GOOD, "temperature": "x" * 100_000}))
    assert len(str(error)) < 1000
