"""Harmony: channels and calls, whatever the pieces; and grammars that bind them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from support.output_parts import cut, parts_of, reading
from support.tiny_tokenizer import BOS_ID, byte_level_tokenizer
from tokenizers import AddedToken

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.dialects.parts import (
    CallArguments,
    CallStart,
    ContentText,
    Part,
    ReasoningText,
)
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.grammars import arguments_schema, json_rules, whole_grammar

HARMONY = Dialect.of("", "harmony")
PROMPT = "<|start|>user<|message|>hi<|end|><|start|>assistant"
LOOK = Tool("look", arguments_schema({"properties": {"ok": {"type": "boolean"}}}))
TOOLS = [LOOK, Tool("go-2", arguments_schema(None))]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
CALL = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{}"
FINAL = "<|channel|>final<|message|>Yes."
NEXT = "<|start|>assistant"
CASES: dict[str, tuple[str, list[Part]]] = {
    "final": (f"{FINAL}<|return|>", [ContentText("Yes.")]),
    "reasoning": (
        f"{THOUGHT}{NEXT}{FINAL}",
        [ReasoningText("Hm."), ContentText("Yes.")],
    ),
    "call": (
        f"{THOUGHT}{NEXT}{CALL}<|call|>",
        [ReasoningText("Hm."), CallStart(0, "look"), CallArguments(0, "{}")],
    ),
    "recipient-first": (
        ' to=functions.go-2<|channel|>commentary json<|message|>{"a": "<|x|>"}',
        [CallStart(0, "go-2"), CallArguments(0, '{"a": "<|x|>"}')],
    ),
    "without-constrain": (
        "<|channel|>commentary to=functions.look<|message|>{}",
        [CallStart(0, "look"), CallArguments(0, "{}")],
    ),
    "without-prefix": (
        "<|channel|>commentary to=look code<|message|>{}",
        [CallStart(0, "look"), CallArguments(0, "{}")],
    ),
    "two-calls": (
        f"{CALL}<|call|>{NEXT}{CALL}",
        [
            CallStart(0, "look"),
            CallArguments(0, "{}"),
            CallStart(1, "look"),
            CallArguments(1, "{}"),
        ],
    ),
    "preamble": (
        f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}",
        [ContentText("I look."), CallStart(0, "look"), CallArguments(0, "{}")],
    ),
    "preamble-and-answer": (
        f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{THOUGHT}{NEXT}{FINAL}",
        [ContentText("I look."), ReasoningText("Hm."), ContentText("\n\nYes.")],
    ),
    "two-thoughts": (
        f"{THOUGHT}{NEXT}{THOUGHT}",
        [ReasoningText("Hm.\n\nHm.")],
    ),
    "tool-of-another-host": (
        "<|channel|>analysis to=browser.search code<|message|>{}<|end|>",
        [ReasoningText("{}")],
    ),
    "no-end": (
        f"<|channel|>analysis<|message|>a < b{NEXT}{FINAL}<|channel|>final<|message|>x",
        [ReasoningText("a < b"), ContentText("Yes.\n\nx")],
    ),
    "cut-text": ("<|channel|>final<|message|>Ye <|retu", [ContentText("Ye <|retu")]),
    "cut-header": (f"{FINAL}<|end|>{NEXT}<|channel|>comm", [ContentText("Yes.")]),
    "no-channels": ("Plain <b>text", [ContentText("Plain <b>text")]),
    "only-message": ("<|message|>x", [ContentText("x")]),
    "nothing": ("", []),
}


@pytest.mark.parametrize("case", CASES)
@given(borders=st.lists(st.integers(0, 200), max_size=30))
def test_outputs_are_read_whatever_the_cuts(case: str, borders: list[int]) -> None:
    text, parts = CASES[case]
    parser = HARMONY.parser(TOOLS, prompt=PROMPT)
    assert parts_of(parser, cut(text, borders)) == parts
    assert parser.has_calls == any(isinstance(part, CallStart) for part in parts)


@pytest.mark.parametrize(
    ("prompt", "text", "parts"),
    [
        ("", f"{NEXT}{FINAL}", [ContentText("Yes.")]),
        ("...<|end|>", f"{NEXT}{THOUGHT}", [ReasoningText("Hm.")]),
        (f"{PROMPT}{FINAL}", " And<|end|>", [ContentText(" And")]),
        (f"{PROMPT}<|channel|>analysis<|message|>", "So<|end|>", [ReasoningText("So")]),
        (f"{PROMPT}<|channel|>analysis", "<|message|>So<|end|>", [ReasoningText("So")]),
        ("the end of a long answer", " goes on", [ContentText(" goes on")]),
    ],
)
def test_an_output_goes_on_where_the_prompt_ends(prompt: str, text: str, parts: list[Part]) -> None:
    assert parts_of(HARMONY.parser([], prompt=prompt), text) == parts


def test_without_tools_channels_are_read_and_calls_are_not() -> None:
    parser = HARMONY.parser([], prompt=PROMPT)
    found = parts_of(parser, [f"{THOUGHT}{NEXT}{CALL}"])
    assert found == [ReasoningText("Hm."), ContentText("{}")]
    assert not parser.has_calls


def test_text_goes_out_as_it_arrives() -> None:
    parser = HARMONY.parser(TOOLS, prompt=PROMPT)
    assert parser.push("<|channel|>analysis<|mess") == []
    assert parser.push("age|>a") == [ReasoningText("a")]
    assert parser.push(" <") == [ReasoningText(" ")]
    assert reading(parser.push(" b")) == ("", "< b", [])
    assert parser.push("<|end|>" + CALL[:-2]) == [CallStart(0, "look")]
    assert parser.push('{"ok"') == [CallArguments(0, '{"ok"')]
    assert parser.push(": true}") == [CallArguments(0, ": true}")]


def test_a_template_shows_it() -> None:
    found = Dialect.of("{{ '<|start|>assistant<|channel|>analysis<|message|>' }}</think>")
    assert found.name == "harmony"
    assert found.reasoning is None, "what comes in <think> would be text"


def tokens(*, marks: bool) -> tuple[LLTokenizer, dict[str, int]]:
    """A byte-level vocabulary; with `marks` they are special tokens, as gpt-oss has them.

    `<|end|>` is one always.
    """
    tokenizer = byte_level_tokenizer()
    names = HARMONY.marks if marks else ("<|end|>",)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in names])
    ids = {mark: tokenizer.token_to_id(mark) for mark in names}
    return LLTokenizer(tokenizer.to_str(), eos_token=BOS_ID), ids


def accepts(tokenizer: LLTokenizer, grammar: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def grammar_of(
    ids: dict[str, int], *, text: Any = None, at_least_one: bool = True, prompt: str = PROMPT
) -> str:
    return whole_grammar(
        text,
        calls=HARMONY.calls_grammar(Calls(TOOLS, at_least_one, True, ids)),
        prefix=HARMONY.reasoning_grammar(prompt, ids),
        opening=HARMONY.text_opening(prompt, ids),
    )


@pytest.mark.parametrize("marks", [False, True])
def test_a_call_is_forced_after_analysis(marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    grammar = grammar_of(ids)
    for text, is_taken in {
        CALL: True,
        f"{THOUGHT}{NEXT}{THOUGHT}{NEXT}{CALL}": True,
        ' to=functions.go-2<|channel|>commentary json<|message|>{"a": [1]}': True,
        "<|channel|>commentary to=functions.look<|message|>{}": True,
        FINAL: False,
        f"{THOUGHT}{NEXT}{FINAL}": False,
        THOUGHT: False,
        "": False,
        "<|channel|>commentary to=functions.nobody<|message|>{}": False,
        CALL[:-2] + '{"ok": 1}': False,
    }.items():
        assert accepts(tokenizer, grammar, text) is is_taken, text


@pytest.mark.parametrize("marks", [False, True])
def test_text_is_bound_in_the_final_channel(marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    json_only = json_rules({"type": "object", "properties": {"a": {"type": "integer"}}})
    grammar = grammar_of(ids, text=json_only)
    answer = '<|channel|>final<|message|>{"a": 1}'
    assert accepts(tokenizer, grammar, answer)
    assert accepts(tokenizer, grammar, f"{THOUGHT}{NEXT}{answer}")
    assert accepts(tokenizer, grammar, CALL)
    assert not accepts(tokenizer, grammar, FINAL)
    assert not accepts(tokenizer, grammar, '{"a": 1}')
    whole = parts_of(HARMONY.parser(TOOLS, prompt=PROMPT), [f"{THOUGHT}{NEXT}{answer}"])
    assert json.loads(reading(whole)[0]) == {"a": 1}


@pytest.mark.parametrize("marks", [False, True])
def test_a_bound_text_goes_on_where_the_prompt_ends(marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    prompt = f"{PROMPT}<|channel|>final<|message|>"
    grammar = whole_grammar(
        json_rules({"type": "object"}),
        prefix=HARMONY.reasoning_grammar(prompt, ids),
        opening=HARMONY.text_opening(prompt, ids),
    )
    assert accepts(tokenizer, grammar, "{}")
    assert not accepts(tokenizer, grammar, FINAL)


@pytest.mark.parametrize("marks", [False, True])
def test_strict_tools_leave_text_free(marks: bool) -> None:
    tokenizer, ids = tokens(marks=marks)
    grammar = grammar_of(ids, at_least_one=False)
    for text in (FINAL, f"{THOUGHT}{NEXT}{FINAL}", CALL):
        assert accepts(tokenizer, grammar, text), text
    assert not accepts(tokenizer, grammar, CALL[:-2] + '{"ok": 1}')


def test_a_name_that_the_header_cannot_hold() -> None:
    with pytest.raises(InvalidRequestError, match=r"'a b'.*letters, digits") as caught:
        HARMONY.calls_grammar(Calls([Tool("a b")], True, False, {}))
    assert caught.value.param == "tools"
