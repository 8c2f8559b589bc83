"""Grammars of reasoning before an answer that is bound."""

import pytest
from llguidance import LLMatcher, LLTokenizer
from support.tiny_tokenizer import EOS_ID, byte_level_tokenizer
from tokenizers import AddedToken

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.text.grammars import json_rules, whole_grammar

MARKS = ["<think>", "</think>"]


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("", "prompt"),
        ("So it", "prompt"),
        ("<think>\nhm, " + "long " * 100, "<think>"),
        ("<think>hm</think>\n\nSo", "</think>"),
        ("hm</think>So", "</think>"),
    ],
)
def test_a_begun_answer_says_whether_the_output_goes_on_within_its_reasoning(
    begun: str, expected: str
) -> None:
    assert Dialect.of("</think>").prompt_end("prompt", begun) == expected
    assert Dialect.of("<tool_call>").prompt_end("prompt", begun) == "prompt"


def test_the_label_of_a_mark_is_a_part_of_it() -> None:
    dialect = Dialect.of("<|channel>thought<channel|>")
    assert dialect.opens_reasoning(dialect.prompt_end("", "<|channel>thought\nhm"))


@pytest.mark.parametrize("marks", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("inside", [False, True], ids=["opens", "opened"])
def test_reasoning_is_free_and_the_answer_bound(marks: bool, inside: bool) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS] if marks else [])
    ids = {mark: tokenizer.token_to_id(mark) for mark in MARKS} if marks else {}
    rules = Dialect.of("</think>").reasoning_grammar("<think>\n" if inside else "", ids)
    grammar = whole_grammar(json_rules({"type": "object"}), prefix=rules)
    table = LLTokenizer(tokenizer.to_str(), eos_token=EOS_ID)

    def accepts(text: str) -> bool:
        matcher = LLMatcher(table, grammar)
        assert not matcher.is_error(), matcher.get_error()
        tokens = table.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    opening = "" if inside else "<think>"
    assert accepts(opening + "a {b\n</think>\n\n{}")
    assert accepts(opening + "</think>{}")
    assert not accepts(opening + "a</think>\n\nb")
    assert not accepts(opening + "a")
    assert accepts("{}") is not inside
