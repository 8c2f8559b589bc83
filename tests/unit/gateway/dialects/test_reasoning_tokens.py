"""Tokens of reasoning are those between its marks, whether marks are tokens or text."""

import random
from collections.abc import Sequence

import pytest

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.families.harmony import Harmony
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.dialects.parts import ReasoningText

THINK = ("<think>", "</think>")


class Vocabulary:
    """Pieces of text as tokens."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._ids = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
        self._pieces = list(self._ids)

    def ids(self, pieces: Sequence[str]) -> list[int]:
        return [self._ids[piece] for piece in pieces]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in token_ids)


def count(
    dialect: Dialect, pieces: Sequence[str], prompt: str = "", tools: Sequence[Tool] = ()
) -> int | None:
    """Return the tokens counted of an output with these tokens."""
    words = Vocabulary(pieces)
    marks = {mark: words.ids([mark])[0] for mark in dialect.marks if mark in pieces}
    counter = dialect.reasoning_counter(prompt, marks, words.decode, tools)
    return None if counter is None else counter(words.ids(pieces))


@pytest.mark.parametrize(
    ("pieces", "prompt", "expected"),
    [
        (["<think>", "a", "b", "</think>", "c"], "", 2),
        (["\n", "<think>", "a", "</think>", "c", "d"], "", 1),
        (["<think>", "a", "b"], "", 2),
        (["a", "b", "</think>", "c"], "<think>\n", 2),
        (["<think>", "a", "</think>", "c"], "<think>", 1),
        (["a", "b"], "<think>", 2),
        (["a", "<think>", "b", "</think>"], "", 0),
        (["a", "b"], "", 0),
        ([], "<think>", 0),
        (["<thi", "nk>", "a", "b", "</th", "ink>\n", "c"], "", 2),
        (["a", "b", "</th", "ink>\n", "c"], "<think>", 2),
        (["a"], "<think>\n\n</think>\n\n", None),
    ],
)
def test_thoughts(pieces: list[str], prompt: str, expected: int | None) -> None:
    assert count(Dialect.of("</think>"), pieces, prompt) == expected


def test_a_model_without_reasoning_counts_none() -> None:
    assert count(Dialect.of("<tool_call>"), ["<think>", "a", "</think>"]) is None


def message(channel: str, *texts: str, end: str = "<|end|>") -> list[str]:
    """Return the tokens of a message of Harmony's."""
    return ["<|channel|>", channel, "<|message|>", *texts, end]


START = ["<|start|>", "assistant"]


@pytest.mark.parametrize(
    ("pieces", "prompt", "expected"),
    [
        ([*message("analysis", "a", "b"), *START, *message("final", "c")], "", 2),
        ([*message("analysis", "a"), *START, *message("analysis", "b", "c"), "d"], "", 3),
        (message("final", "a", "b"), "", 0),
        (message("commentary to=functions.look", "a", end="<|call|>"), "", 0),
        (["<|channel|>", "ana", "lysis", "<|message|>", "a", "b"], "", 2),
        (
            ["a", "b", "<|end|>", *START, *message("final", "c")],
            "<|channel|>analysis<|message|>",
            2,
        ),
        (["a", "b"], "<|channel|>final<|message|>", 0),
        (message("commentary to=browser.search", "a", end="<|call|>"), "", 1),
        (message("analysis to=functions.look", "a", end="<|call|>"), "", 0),
        (message("analysis to=look", "a", end="<|call|>"), "", 0),
        (["to=functions.look", *message("analysis", "a", end="<|call|>")], "", 0),
    ],
)
def test_messages_of_analysis(pieces: list[str], prompt: str, expected: int) -> None:
    """What is counted is what the parser gives as reasoning."""
    dialect, prompt = Dialect.of("<|channel|>"), f"<|start|>assistant{prompt}"
    tools = [Tool("look", {})]
    assert count(dialect, pieces, prompt, tools) == expected
    parser = dialect.parser(tools, prompt=prompt)
    parts = [*parser.push("".join(pieces)), *parser.flush()]
    thoughts = [part.text for part in parts if isinstance(part, ReasoningText)]
    assert len("".join(thoughts).replace("\n\n", "")) == expected  # a letter a token


@pytest.mark.parametrize("seed", range(20))
def test_marks_as_text_count_what_marks_as_tokens_do(seed: int) -> None:
    draw = random.Random(seed)
    dialect = Dialect.of("</think>")
    thought = [f"{i} " for i in range(draw.randrange(50))]
    said = [f"w{i}" for i in range(draw.randrange(5))]
    whole = [THINK[0], *thought, THINK[1], *said]
    cut = ["<t", "hink>", *thought, "</", "think>", *said]
    assert count(dialect, whole) == count(dialect, cut) == len(thought)


def test_harmonys_marks_are_known() -> None:
    assert set(Dialect.of("<|channel|>").marks) == set(Harmony.marks)
