"""What a grammar of calls lets a model write, the parser reads as calls that fit the schemas."""

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer
from support.output_parts import parts_of, reading
from support.tiny_tokenizer import EOS_ID, byte_level_tokenizer
from tokenizers import AddedToken

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.families import deepseek, glm, kimi, olmo3, qwen3_coder
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.grammars import arguments_schema

ODD_NAME = 'a "b"\\ {\u00e9\n[<x>'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 3},
        "mode": {"enum": ["a", 1, None]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 31}},
}
UNTYPED = {"properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
PLAIN = [
    Tool("look", arguments_schema(SCHEMA)),
    Tool("go_2", arguments_schema(UNTYPED)),
    Tool("go", arguments_schema(None)),
]
ODD = [Tool(ODD_NAME, arguments_schema(SCHEMA)), Tool("look", arguments_schema({}))]
TEMPLATES = {
    "hermes": "<tool_call>", "llama3": "", "mistral": "", "mistral, named": "[ARGS]",
    "mistral, ids": "[CALL_ID][ARGS]", "qwen3_coder": "", "seed_oss": "", "gemma4": "",
    "deepseek": "", "deepseek, fenced": deepseek.FENCE, "kimi": "", "glm": "",
    "glm, one line": glm.KEY_CLOSE + glm.VALUE, "granite": "", "phi4_mini": "", "command_r7b": "",
    "nemotron": "", "olmo3": "",
}  # fmt: skip
JSON = ("hermes", "llama3", "mistral", "granite", "phi4_mini", "command_r7b", "nemotron")
NAMES_WITH_AN_END = [name for name in TEMPLATES if name not in JSON]
SPECIAL = [
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call>", "<tool_call|>", *deepseek.DeepSeek.marks,
    "<TOOLCALL>", "</TOOLCALL>", *kimi.Kimi.marks, "<|tool_call|>", "<|/tool_call|>",
    "<|START_ACTION|>", "<|END_ACTION|>",
]  # fmt: skip
PLAIN_MARKS = [*glm.Glm.marks, *olmo3.Olmo3.marks, qwen3_coder.SEED_OPEN, qwen3_coder.SEED_CLOSE]
MARKS = PLAIN_MARKS + SPECIAL
ENDS_OF_TEXTS = {
    "qwen3_coder": "</parameter>", "seed_oss": "</parameter>", "glm": "</arg_value>",
    "glm, one line": "</arg_value>",
}  # fmt: skip
QWENS = "\n<function=go_2>\n<parameter=ok>\n%s\n</parameter>\n</function>\n"
ENDING = set(b'"}]') | {EOS_ID}
MAX_TOKENS = 1500


def tokens(*, marks: bool) -> tuple[LLTokenizer, dict[str, int]]:
    """A byte-level vocabulary; with `marks` they are tokens of their own, some special."""
    tokenizer = byte_level_tokenizer()
    if marks:
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in PLAIN_MARKS])
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in SPECIAL])
    ids = {mark: tokenizer.token_to_id(mark) for mark in MARKS} if marks else {}
    return LLTokenizer(tokenizer.to_str(), eos_token=EOS_ID), ids


def dialect(name: str) -> Dialect:
    return Dialect.of(TEMPLATES[name], name.split(",")[0])


def walk(tokenizer: LLTokenizer, rules: str, seed: int, end: str = "") -> str:
    """Write at random within the grammar, to an end where one is allowed; `end` ends texts."""
    tag = tokenizer.tokenize_str(end, parse_special=True)
    draw = random.Random(seed)
    matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
    assert not matcher.is_error(), matcher.get_error()
    written: list[int] = []
    while len(written) < MAX_TOKENS:
        if tag and draw.random() < 0.2 and matcher.validate_tokens(tag) == len(tag):
            written += tag
            assert matcher.consume_tokens(tag)
        allowed = [i for i, bias in enumerate(matcher.compute_logit_bias()) if bias]
        ending = [i for i in allowed if i == EOS_ID or set(tokenizer.decode_bytes([i])) <= ENDING]
        token = draw.choice(ending if ending and draw.random() < 0.4 else allowed)
        if token == EOS_ID:
            return tokenizer.decode_str(written)
        written.append(token)
        assert matcher.consume_token(token)
    raise AssertionError(f"seed {seed}: no end after {MAX_TOKENS} tokens")


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("name", "tools"), [*((name, PLAIN) for name in TEMPLATES), *((name, ODD) for name in JSON)]
)
def test_walks_are_calls(name: str, tools: list[Tool], parallel: bool, marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    found = dialect(name)
    rules = found.calls_grammar(Calls(tools, True, parallel, ids))
    schemas = {tool.name: tool.arguments for tool in tools}
    counts = set()
    for seed in range(12):
        text = walk(tokenizer, rules, seed, ENDS_OF_TEXTS.get(name, ""))
        print(f"seed {seed}: {text!r}")
        content, _, calls = reading(parts_of(found.parser(tools), text))
        assert content == ""
        for called, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[called])
        counts.add(len(calls))
    assert counts == {1} if not parallel else min(counts) == 1 < max(counts)


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_text_may_come_before_or_instead(name: str, marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    rules = dialect(name).calls_grammar(Calls(PLAIN, False, True, ids))
    call = {
        "hermes": '<tool_call>\n{"name": "go_2", "arguments": {"ok": %s}}\n</tool_call>',
        "llama3": '{"name": "go_2", "parameters": {"ok": %s}}',
        "mistral": '[TOOL_CALLS][{"name": "go_2", "arguments": {"ok": %s}}]',
        "mistral, named": '[TOOL_CALLS]go_2[ARGS]{"ok": %s}',
        "mistral, ids": '[TOOL_CALLS]go_2[CALL_ID]abcdef123[ARGS]{"ok": %s}',
        "qwen3_coder": "<tool_call>" + QWENS + "</tool_call>",
        "seed_oss": "<seed:tool_call>" + QWENS + "</seed:tool_call>",
        "deepseek": deepseek.CALLS + deepseek.CALL + "go_2" + deepseek.SEPARATOR + '{"ok": %s}'
        + deepseek.CALL_END + deepseek.CALLS_END,
        "deepseek, fenced": deepseek.CALLS + deepseek.CALL + "function" + deepseek.SEPARATOR
        + 'go_2\n```json\n{"ok": %s}\n```' + deepseek.CALL_END + deepseek.CALLS_END,
        "granite": '<|tool_call|>[{"name": "go_2", "arguments": {"ok": %s}}]',
        "phi4_mini": '<|tool_call|>[{"name": "go_2", "arguments": {"ok": %s}}]<|/tool_call|>',
        "nemotron": '<TOOLCALL>[{"name": "go_2", "arguments": {"ok": %s}}]</TOOLCALL>',
        "olmo3": "<function_calls>go_2(ok=%s)</function_calls>",
        "command_r7b": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "go_2", '
        '"parameters": {"ok": %s}}\n]<|END_ACTION|>',
        "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.go_2:0"
        '<|tool_call_argument_begin|>{"ok": %s}<|tool_call_end|><|tool_calls_section_end|>',
        "glm": "<tool_call>go_2\n<arg_key>ok</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
        "glm, one line": "<tool_call>go_2<arg_key>ok</arg_key><arg_value>%s</arg_value>"
        "</tool_call>",
        "gemma4": '<|tool_call>call:go_2{"ok": %s}<tool_call|>',
    }[name]  # fmt: skip

    def accepts(text: str) -> bool:
        matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
        ids_of_text = tokenizer.tokenize_str(text, parse_special=marks)
        return matcher.try_consume_tokens(ids_of_text) == len(ids_of_text) and (
            matcher.is_accepting()
        )

    assert accepts("")
    assert accepts("Hello <you> [all]\n")
    assert accepts(call % "true")
    assert not accepts(call % "5")
    if name != "llama3":
        assert accepts("Hello\n" + call % "true")
        assert not accepts("Hello\n" + call % "5")


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "Hello" + QWENS + "</tool_call>"),
        ("seed_oss", QWENS[1:] + "</seed:tool_call>"),
        (
            "llama3",
            '{"name": "go_2", "parameters": {"ok": true}}\n'
            '{"name": "go_2", "parameters": {"ok": %s}}',
        ),
    ],
)
def test_calls_that_models_write_otherwise_are_held_too(name: str, text: str, marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    rules = dialect(name).calls_grammar(Calls(PLAIN, False, True, ids))
    for value, is_taken in (("true", True), ("5", False)):
        matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
        written = tokenizer.tokenize_str(text % value, parse_special=marks)
        assert (matcher.try_consume_tokens(written) == len(written)) is is_taken
        assert not is_taken or matcher.is_accepting()


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss"])
@pytest.mark.parametrize("tag", ["<parameter=", "</function>"])
def test_a_text_has_no_tags_that_would_end_it(name: str, tag: str) -> None:
    tokenizer, _ = tokens(marks=False)
    tools = [Tool("go", arguments_schema({"properties": {"a": {"type": "string"}}}))]
    rules = dialect(name).calls_grammar(Calls(tools, True, False, {}))
    head = f"{dialect(name).marks[0]}\n<function=go>\n<parameter=a>\nx < y"
    for text, is_taken in ((head + tag[:-1], True), (head + tag, False)):
        matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
        ids = tokenizer.tokenize_str(text)
        assert (matcher.try_consume_tokens(ids) == len(ids)) is is_taken


@pytest.mark.parametrize("name", NAMES_WITH_AN_END)
def test_a_name_that_the_format_cannot_hold(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="letters, digits") as caught:
        dialect(name).calls_grammar(Calls(ODD, True, False, {}))
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    ("schema", "takes_more"),
    [
        (UNTYPED, False),
        ({"type": "object", "properties": {"ok": {}}}, False),
        ({**UNTYPED, "additionalProperties": True}, True),
        ({**UNTYPED, "required": ["ok", "x"]}, True),
        ({**UNTYPED, "allOf": [{"properties": {"x": {"type": "integer"}}}]}, True),
        ({"type": "object"}, True),
        (None, True),
        ({**UNTYPED, "type": ["object", "null"]}, False),
        ({**UNTYPED, "type": ["null", "object"], "minProperties": 1}, True),
    ],
)
def test_a_function_takes_the_arguments_that_it_names(
    schema: dict[str, Any] | None, takes_more: bool
) -> None:
    tokenizer, _ = tokens(marks=False)
    rules = dialect("hermes").calls_grammar(
        Calls([Tool("go", arguments_schema(schema))], True, False, {})
    )
    head = '<tool_call>\n{"name": "go", "arguments": {"ok": true'
    matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
    for text, is_taken in ((head, True), (', "x": 1}}\n</tool_call>', takes_more)):
        ids = tokenizer.tokenize_str(text)
        assert (matcher.try_consume_tokens(ids) == len(ids)) is is_taken


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        ("objekt", "'objekt'; it must be one of"),
        ("string", "'string'; arguments are an object"),
        (["string", "null"], "arguments are an object"),
        (["object", "objekt"], "it must be one of"),
        ([], "it must be one of"),
        (None, "it must be one of"),
        ({}, "it must be one of"),
    ],
)
def test_arguments_of_another_type_than_an_object_are_refused(kinds: Any, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^'type' at the top is") as caught:
        arguments_schema({"type": kinds})
    assert why in str(caught.value)


@pytest.mark.parametrize("required", [5, [{}], "x"])
def test_required_names_that_are_none_are_refused(required: Any) -> None:
    with pytest.raises(InvalidRequestError, match="'required' at the top"):
        arguments_schema({"properties": {}, "required": required})


@pytest.mark.parametrize(
    ("schema", "arguments", "is_taken"),
    [
        (
            {"properties": {"day": {"format": "date", "type": "string"}}},
            '"day": "2023-02-29"',
            False,
        ),
        (
            {"properties": {"day": {"format": "date", "type": "string"}}},
            '"day": "2024-02-29"',
            True,
        ),
        ({"additionalProperties": {"type": "string"}}, r'"\u0061b": "x"', False),
        ({"additionalProperties": {"type": "string"}}, '"ab": "x"', True),
    ],
)
def test_arguments_are_held_as_strictly_as_formats(
    schema: dict[str, Any], arguments: str, is_taken: bool
) -> None:
    tokenizer, _ = tokens(marks=False)
    tools = [Tool("go", arguments_schema(schema))]
    rules = dialect("hermes").calls_grammar(Calls(tools, True, False, {}))
    text = '<tool_call>\n{"name": "go", "arguments": {' + arguments + "}}\n</tool_call>"
    ids = tokenizer.tokenize_str(text)
    matcher = LLMatcher(tokenizer, f"start: calls\n{rules}")
    assert (matcher.try_consume_tokens(ids) == len(ids)) is is_taken
