"""Grammars that hold reasoning to a number of tokens, walked at random."""

import random

import llguidance.numpy
import pytest
from llguidance import LLMatcher, LLTokenizer
from support.tiny_tokenizer import byte_level_tokenizer
from tokenizers import AddedToken

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.families.harmony import Harmony
from pagoda_gateway.text.grammars import json_rules, whole_grammar

THINKS = Dialect.of("</think>")
HARMONY = Dialect.of("<|channel|>")
MARKS = ["<think>", "</think>", "<tool_call>", *Harmony.marks]
TOKENIZER = byte_level_tokenizer()
TOKENIZER.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
IDS = {mark: TOKENIZER.token_to_id(mark) for mark in MARKS}
EOS_ID = IDS["<|return|>"]
TABLE = LLTokenizer(TOKENIZER.to_str(), eos_token=EOS_ID)


def decode(token_ids: list[int]) -> str:
    return str(TOKENIZER.decode(token_ids, skip_special_tokens=False))


def walk(grammar: str, draw: random.Random, favourites: list[int], steps: int = 30) -> list[int]:
    """Return tokens drawn among those that may come; `favourites` are drawn as soon as they may."""
    matcher = LLMatcher(TABLE, grammar)
    assert not matcher.is_error(), matcher.get_error()
    bitmask = llguidance.numpy.allocate_token_bitmask(1, TABLE.vocab_size)
    output: list[int] = []
    while len(output) < steps and not matcher.is_stopped():
        llguidance.numpy.fill_next_token_bitmask(matcher, bitmask)
        words = bitmask[0].view("uint32")
        allowed = [i for i in range(TABLE.vocab_size) if words[i // 32] >> (i % 32) & 1]
        liked = [i for i in allowed if i in favourites]
        token_id = draw.choice(liked if liked and draw.random() < 0.5 else allowed)
        if token_id == EOS_ID:
            break
        assert matcher.consume_token(token_id), decode([token_id])
        output.append(token_id)
    return output


def thinking(dialect: Dialect, prompt: str, budget: int) -> str:
    prefix = dialect.reasoning_grammar(prompt, IDS, budget)
    return whole_grammar(calls=dialect.free_answer(IDS), prefix=prefix)


@pytest.mark.parametrize("budget", [0, 1, 5])
@pytest.mark.parametrize("prompt", ["", "<think>\n"], ids=["opens", "opened"])
def test_thoughts_end_in_time_and_any_answer_follows(prompt: str, budget: int) -> None:
    draw = random.Random(budget)
    count = THINKS.reasoning_counter(prompt, IDS, decode)
    assert count is not None
    grammar = thinking(THINKS, prompt, budget)
    outputs = [walk(grammar, draw, [IDS["<think>"], IDS["<tool_call>"]]) for _ in range(15)]
    counts = [count(output) for output in outputs]
    assert max(counts) == budget
    assert any(IDS["<tool_call>"] in output for output in outputs), "the answer is free"
    assert all(output.count(IDS["<think>"]) <= 1 for output in outputs)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_analysis_ends_in_time_and_is_not_begun_again(budget: int) -> None:
    draw = random.Random(budget)
    prompt = "<|start|>assistant"
    count = HARMONY.reasoning_counter(prompt, IDS, decode)
    assert count is not None
    grammar = thinking(HARMONY, prompt, budget)
    begun = TOKENIZER.encode("<|channel|>a", add_special_tokens=False).ids
    outputs = [walk(grammar, draw, begun) for _ in range(15)]
    assert any("final" in decode(output) for output in outputs)
    assert max(map(count, outputs)) == budget


def test_a_bound_answer_comes_after_bound_thoughts() -> None:
    prefix = THINKS.reasoning_grammar("<think>", IDS, 3)
    grammar = whole_grammar(json_rules({"type": "object"}), prefix=prefix)
    matcher = LLMatcher(TABLE, grammar)
    tokens = TOKENIZER.encode("abc</think>{}", add_special_tokens=False).ids
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("dialect", "prompt", "ids", "expected"),
    [
        (THINKS, "", IDS, True),
        (THINKS, "", {}, False),
        (THINKS, "<think>\n\n</think>\n\n", IDS, False),
        (Dialect.of("<tool_call>"), "", IDS, False),
        (HARMONY, "<|start|>assistant", IDS, True),
        (HARMONY, "<|start|>assistant", {}, False),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>so", IDS, False),
    ],
)
def test_who_can_be_bound(
    dialect: Dialect, prompt: str, ids: dict[str, int], expected: bool
) -> None:
    assert dialect.bounds_reasoning(prompt, ids) is expected
