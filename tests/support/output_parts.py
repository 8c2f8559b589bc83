"""Outputs through a parser of a dialect, in pieces, and what came of them."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from pagoda_gateway.dialects.parts import (
    CallArguments,
    CallStart,
    ContentText,
    OutputParser,
    Part,
    ReasoningText,
)

PlainCall = tuple[str, str]


def cut(text: str, borders: Iterable[int]) -> list[str]:
    """Cut a text at these places."""
    places = sorted({min(border, len(text)) for border in borders} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def parts_of(parser: OutputParser, pieces: Iterable[str]) -> list[Part]:
    """Return all parts; neighbours of the same kind are one."""
    parts = [*itertools.chain.from_iterable(map(parser.push, pieces)), *parser.flush()]
    found: list[Part] = []
    for kind, group in itertools.groupby(parts, type):
        alike = list(group)
        if kind is CallStart:
            found += alike
        else:
            text = "".join(part.text for part in alike)  # type: ignore[union-attr]
            found.append(replace(alike[0], text=text))  # type: ignore[call-arg]
    return found


def reading(parts: Iterable[Part]) -> tuple[str, str, list[PlainCall]]:
    """Return content, reasoning, and each call's name and arguments; checks the calls' order."""
    content, thought, calls = "", "", list[PlainCall]()
    for part in parts:
        match part:
            case ContentText(text):
                content += text
            case ReasoningText(text):
                thought += text
            case CallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, thought, calls
