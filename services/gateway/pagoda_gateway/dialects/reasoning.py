"""Reasoning before the answer: `<think>...</think>`. Knows no tools."""

import re
from collections.abc import Mapping

from pagoda_gateway.dialects.grammar import bounded, mark
from pagoda_gateway.dialects.parts import OutputParser, ReasoningText
from pagoda_gateway.dialects.source import Reading
from pagoda_gateway.dialects.stream_parser import StreamParser

OPEN, CLOSE = "<think>", "</think>"
_NO_NEWLINE = re.compile(r"[^\n]")


def rules(*, inside: bool, token_ids: Mapping[str, int], budget: int | None = None) -> str:
    """Return `prefix`, reasoning that the prompt has opened (`inside`) or that may come.

    `budget`: the most tokens that it has, where its end is a token.
    """
    thinking = "think_text" if inside else f"({mark(OPEN, token_ids)} think_text)?"
    if CLOSE in token_ids:
        thoughts, rule = bounded("thoughts", budget)
        text = rf"think_text: {thoughts} {mark(CLOSE, token_ids)} /\n{{0,2}}/{rule}"
    else:
        text = rf"""think_text: think /\n{{0,2}}/
think[suffix="{CLOSE}"]: /(?s:.*)/"""
    return f"prefix: {thinking}\n{text}"


def free_answer(token_ids: Mapping[str, int]) -> str:
    """Return `calls`, any answer that does not begin to reason again."""
    others = f"<[^{token_ids[OPEN]}]>" if OPEN in token_ids else "<[*]>"
    return f"calls: {others}*"


class ReasoningParser(StreamParser):
    """Splits the reasoning off; what follows it is for the parser of answers."""

    def __init__(self, answer: OutputParser, *, inside: bool) -> None:
        """Begin before a `<think>` that may come, or `inside` one that the prompt has opened."""
        super().__init__()
        self._answer = answer
        self._inside = inside

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._answer.has_calls

    def _read(self) -> Reading[None]:
        space = yield from self._source.whitespace()
        opened = yield from self._source.mark(OPEN)  # some models repeat what the prompt has
        if opened or self._inside:
            if not opened:
                self._reasoning(space)
            yield from self._source.until(CLOSE, self._reasoning)
            yield from self._source.while_not(_NO_NEWLINE, lambda _: None)
        else:
            self._answer_text(space)
        yield from self._source.rest(self._answer_text)
        self._parts += self._answer.flush()

    def _reasoning(self, text: str) -> None:
        if text:
            self._parts.append(ReasoningText(text))

    def _answer_text(self, text: str) -> None:
        self._parts += self._answer.push(text)
