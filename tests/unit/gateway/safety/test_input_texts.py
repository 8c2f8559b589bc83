"""Rules and moderators see all that a request shows to a model, however it is written."""

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from pagoda_gateway.errors import ContentPolicyError, InvalidRequestError
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.safety.input_check import MAX_LOOKS, InputCheck
from pagoda_gateway.safety.policies.file import RuleSettings
from pagoda_gateway.safety.policies.policy import Rules
from pagoda_gateway.safety.said_texts import is_small, said_texts

HI: dict[str, Any] = {"role": "user", "content": "hi"}
Normalize = Callable[[str], str]


def looked_at(
    action: str, deny: str, fields: dict[str, Any], normalize: Normalize | None = None
) -> dict[str, Any]:
    """Return a chat's body as a model may see it."""
    body = ChatBody.model_validate({"model": "m", "messages": [HI], **fields})
    return checked(action, deny, normalize).look(body, ()).model_dump(exclude_unset=True)


def checked(action: str, deny: str, normalize: Normalize | None = None) -> InputCheck:
    settings = {"name": "r", "action": action, "deny": [deny], "replacement": "[gone]"}
    rules = Rules([RuleSettings.model_validate(settings)], {})

    def refusal(rule: str, param: str) -> ContentPolicyError:
        return ContentPolicyError(f"rule {rule!r}", param=param)

    return InputCheck(rules.patterns, lambda *_: None, refusal, "messages", normalize)


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": list(parts)}]}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "parameters": {"type": "object", **schema}}
    return {"tools": [{"type": "function", "function": function}]}


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    call = {"type": "function", "id": "c1", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [HI, {"role": "assistant", "tool_calls": [{**call, **fields}]}]}


CUSTOM: dict[str, Any] = {"type": "custom", "id": "c", "custom": {"name": "f", "input": "so bad"}}
DENIED: list[dict[str, Any]] = [
    tool({"properties": {"a": {"enum": [1, "so bad"]}}}),
    tool({"examples": [True, {"deep": "so bad"}]}),
    tool({"properties": {"so bad": {"type": "string"}}}),
    tool({"properties": {"a": {"id": "so bad"}}}),
    tool({"properties": {"a": {"type": "so bad"}}}),
    called({"a": [1, "so bad"]}),
    called('{"a": [1, "so bad"]}'),
    called('{"a": "so\\u0020b\\u0061d"}'),
    called('{"so b\\u0061d": 1}'),
    called('{"a": "so b\\u0061d", "a": ""}'),  # a template may show the text
    called('["so bad"]'),
    called("so bad"),
    called({}, id="so bad"),
    called({}, function={"name": "so bad"}),
    {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": '"so bad'}}]},
    {"messages": [{"role": "assistant", "tool_calls": [CUSTOM]}]},
    {"messages": [{"role": "tool", "content": "x", "tool_call_id": "so bad"}]},
    said(text("so"), text("bad")),
    said(text("so b"), text("ad")),
    said(text("x"), {"type": "refusal", "refusal": "so bad"}),
    said(text("so"), {"type": "refusal", "refusal": "bad", "text": ""}),
    {"documents": [{"pages": [7, "so bad"]}]},
    {"chat_template_kwargs": {"so bad": 1}},
    {"reasoning_effort": "so bad"},
]


@pytest.mark.parametrize("fields", DENIED)
def test_nothing_denied_is_let_through(fields: dict[str, Any]) -> None:
    with pytest.raises(ContentPolicyError, match="rule 'r'") as refused:
        looked_at("block", r"so\s?bad", fields)
    (field,) = fields
    assert refused.value.param == ("messages" if field == "reasoning_effort" else field)


@pytest.mark.parametrize(
    "fields",
    [
        tool({"properties": {"so bad": {}}}),
        called('{"so b\\u0061d": 1}'),
        called('{"a": "so b\\u0061d", "a": ""}'),
        called({}, id="so bad"),
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "so bad"}]},
        said(text("so"), text("bad")),
        said(text("so b"), {"type": "refusal", "refusal": "ad"}),
        said(text("so bad so"), text("bad")),
    ],
)
def test_what_cannot_be_replaced_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ContentPolicyError, match="rule 'r'"):
        looked_at("redact", r"so\s?bad", fields)


def test_what_is_redacted() -> None:
    schema = {"enum": [1, 4111, "so bad"], "id": "so bad", "type": "so bad", "minimum": 4111}
    seen = looked_at("redact", r"so\s?bad|\d{4}", tool(schema))
    parameters = seen["tools"][0]["function"]["parameters"]
    assert parameters == {
        "enum": [1, "[gone]", "[gone]"], "id": "[gone]", "type": "[gone]", "minimum": 4111,
    }  # fmt: skip
    seen = looked_at("redact", "so bad", said(text("so bad"), text("x"), text("so bad")))
    assert [part["text"] for part in seen["messages"][0]["content"]] == ["[gone]", "x", "[gone]"]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ('{"a": "so b\\u0061d", "b": "\\u00e9\\n"}', '{"a": "[gone]", "b": "é\\n"}'),
        ('{"a":"1\\/2","b":1.5}', '{"a": "[gone]", "b": 1.5}'),
        ('{"a": [4111111111111111, true]}', '{"a": ["[gone]", true]}'),
        ('{"a" :"\\u00e9"}', '{"a" :"\\u00e9"}'),  # as it came, where nothing matches
        ('{"a": "so bad', '{"a": "[gone]'),
    ],
)
def test_arguments_are_redacted_as_what_they_say(sent: str, shown: str) -> None:
    seen = looked_at("redact", r"so bad|1/2|\d{16}", called(sent))
    assert seen["messages"][1]["tool_calls"][0]["function"]["arguments"] == shown


def test_arguments_are_looked_at_as_json_too() -> None:
    with pytest.raises(ContentPolicyError):
        looked_at("block", '"key": "x', called('{"k\\u0065y"    :"x"}'))


def test_what_stands_for_a_match_may_match() -> None:
    fields = said(text("a card"), text("b"))
    seen = looked_at("redact", "card|gone", fields)
    assert seen["messages"][0]["content"][0]["text"] == "a [gone]"
    seen = looked_at("redact", "card|gone", called('{"a": "card"}'))
    assert seen["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": "[gone]"}'


def test_words_of_the_api_are_nobodys() -> None:
    fields = {**said(text("x")), "tools": [{"type": "function", "function": {"name": "f"}}]}
    seen = looked_at("redact", "assistant|^text$", fields)
    assert seen["messages"] == fields["messages"]


def test_deep_arguments_are_refused() -> None:
    deep = '{"a":' + "[" * 120 + "]" * 120 + "}"
    with pytest.raises(InvalidRequestError, match="nested 121 deep; the limit is 100"):
        looked_at("block", "x", called(deep))


def test_token_ids_stay() -> None:
    body = CompletionBody.model_validate({"model": "m", "prompt": [[1, 2], "so bad"]})
    seen = checked("redact", "so bad|1").look(body, ())
    assert seen.prompt == [[1, 2], "[gone]"]


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def test_a_text_is_looked_at_as_tokens_are_made_of_it() -> None:
    sent = {"messages": [{**HI, "content": "un cafe\u0301"}]}
    assert looked_at("block", "caf\u00e9", sent) == {"model": "m", **sent}
    for action in ("block", "redact"):
        with pytest.raises(ContentPolicyError):
            looked_at(action, "caf\u00e9", sent, nfc)
    seen = looked_at("redact", "un caf", {"messages": [{**HI, "content": "un caf, e\u0301"}]}, nfc)
    assert seen["messages"][0]["content"] == "[gone], e\u0301"


@pytest.mark.parametrize(
    "fields",
    [
        called('{"a": "not\\nso bad"}'),  # what is allowed is, in arguments too
        called({"a": "not\nso bad"}),
        called({"a": "x\bso", "b": "ad"}),
        called({"slides": [{"text": "so"}, {"text": "bad"}]}),  # no parts of a message
        tool({"examples": [{"text": "so"}, {"text": "bad"}]}),
        {"documents": [{"title": "a", "text": "so"}, {"title": "b", "text": "bad"}]},
        tool({"properties": {"n": {"type": "integer", "maximum": 9007199254740991}}}),
    ],
)
def test_what_is_harmless_is_let_through(fields: dict[str, Any]) -> None:
    rule = RuleSettings.model_validate({
        "name": "r", "action": "block", "deny": [r"so\s?bad", r"\d{13,19}", r"\bbso"],
        "allow": [r"not\sso\s?bad"],
    })  # fmt: skip
    check = InputCheck(
        Rules([rule], {}).patterns, lambda *_: None,
        lambda rule, param: ContentPolicyError(f"rule {rule!r}", param=param), "messages", None,
    )  # fmt: skip
    body = ChatBody.model_validate({"model": "m", "messages": [HI], **fields})
    assert check.look(body, ()) is body


def test_how_many_texts_rules_look_at() -> None:
    most = [1] * (MAX_LOOKS - 100)
    assert looked_at("block", "bad", {"chat_template_kwargs": {"x": most}})
    with pytest.raises(InvalidRequestError, match=str(MAX_LOOKS)):
        looked_at("block", "bad", {"chat_template_kwargs": {"x": [1] * (MAX_LOOKS + 1)}})


def test_moderators_see_what_is_said() -> None:
    body = ChatBody.model_validate({
        "model": "m",
        "messages": [
            {"role": "user", "name": "ann", "content": [text("tox"), text("ic")]},
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
                "reasoning_content": "hm",
                "tool_calls": [
                    {"function": {"name": "f", "arguments": '{"k": ["v\\u0061", 1]}'}},
                    {"function": {"name": "g", "arguments": "half"}},
                    {"type": "custom", "custom": {"name": "h", "input": "free"}},
                ],
            },
            {"role": "tool", "content": "result"},
        ],
        "documents": [{"title": "doc"}],
        "chat_template_kwargs": {"who": "me"},
        "tools": [{"type": "function", "function": {
            "name": "f", "description": "does",
            "parameters": {"type": "object", "properties": {"description": {
                "type": "string", "description": "inner"}}}}}],
    })  # fmt: skip
    assert said_texts(body) == [
        "tox", "ic", "toxic", "ann", "no", "hm", "f", "k", "va", "g", "half", "h",
        "input", "free", "result", "title", "doc", "who", "me", "does", "inner",
    ]  # fmt: skip


def test_how_much_there_is_to_look_at() -> None:
    assert is_small({"a": ["x" * 50]}, 400)
    assert not is_small({"a": ["x" * 400]}, 400)
    assert not is_small([1] * 100, 400)  # each costs something
    body = ChatBody.model_validate({"model": "m", **called(json.dumps({"a": "x" * 2000}))})
    assert is_small(body, 4000)
    assert not is_small(body, 2000)
    body = ChatBody.model_validate({"model": "m", **called(json.dumps({"a": [1] * 200}))})
    assert not is_small(body, 10_000)  # they are looked at one by one
