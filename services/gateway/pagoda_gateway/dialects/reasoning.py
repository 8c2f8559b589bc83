"""Reasoning before the answer, between two marks: `<think>...</think>`. Knows no tools."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagoda_gateway.dialects.grammar import bounded, json_text, mark
from pagoda_gateway.dialects.parts import OutputParser, ReasoningText
from pagoda_gateway.dialects.source import Reading
from pagoda_gateway.dialects.stream_parser import StreamParser

_NO_NEWLINE = re.compile(r"[^\n]")


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What reasoning is between.

    Attributes:
        open, close: marks.
        label: text after the first one, which belongs to it.
    """

    open: str
    close: str
    label: str = ""

    @classmethod
    def shown_by(cls, template_source: str) -> "ReasoningMarks | None":
        """Return the marks that a chat template shows; None: it shows none."""
        return next((marks for marks in _KNOWN if marks.close in template_source), None)

    def are_opened_by(self, prompt: str) -> bool:
        """Return whether an output goes on inside reasoning that the prompt's end has opened."""
        return prompt.rstrip().endswith(self.open + self.label)

    def are_closed_by(self, prompt: str) -> bool:
        """Return whether the prompt's end has closed it, so that no more comes."""
        return prompt.rstrip().endswith(self.close)

    def left_by(self, begun: str) -> str:
        """Return the mark that the beginning of an answer has left last, as a prompt's end.

        Empty if there is none in it.
        """
        opened, closed = begun.rfind(self.open), begun.rfind(self.close)
        if opened == closed:
            return ""
        return self.open + self.label if opened > closed else self.close

    def rules(self, *, inside: bool, token_ids: Mapping[str, int], budget: int | None) -> str:
        """Return `prefix`, reasoning that the prompt has opened (`inside`) or that may come.

        `budget`: the most tokens that it has, where its end is a token.
        """
        label = json_text(self.label + "\n") if self.label else ""
        opening = f"{mark(self.open, token_ids)} {label}"
        thinking = "think_text" if inside else f"({opening} think_text)?"
        if self.close in token_ids:
            thoughts, rule = bounded("thoughts", budget)
            text = rf"think_text: {thoughts} {mark(self.close, token_ids)} /\n{{0,2}}/{rule}"
        else:
            text = rf"""think_text: think /\n{{0,2}}/
think[suffix="{self.close}"]: /(?s:.*)/"""
        return f"prefix: {thinking}\n{text}"

    def free_answer(self, token_ids: Mapping[str, int]) -> str:
        """Return `calls`, any answer that does not begin to reason again."""
        others = f"<[^{token_ids[self.open]}]>" if self.open in token_ids else "<[*]>"
        return f"calls: {others}*"


THINK = ReasoningMarks("<think>", "</think>")
THOUGHT_CHANNEL = ReasoningMarks("<|channel>", "<channel|>", "thought")
"""Gemma 4's."""

_KNOWN = (
    THINK,
    THOUGHT_CHANNEL,
    ReasoningMarks("[THINK]", "[/THINK]"),  # Magistral's
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B's
)


class ReasoningParser(StreamParser):
    """Splits the reasoning off; what follows it is for the parser of answers."""

    def __init__(self, marks: ReasoningMarks, answer: OutputParser, *, inside: bool) -> None:
        """Begin before a mark that may come, or `inside` what the prompt has opened."""
        super().__init__()
        self._marks = marks
        self._answer = answer
        self._inside = inside

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._answer.has_calls

    def _read(self) -> Reading[None]:
        space = yield from self._source.whitespace()
        marks = self._marks
        opened = yield from self._source.mark(marks.open)  # some repeat what the prompt has
        if opened and marks.label:
            yield from self._source.mark(marks.label)
        if opened or self._inside:
            if not opened:
                self._reasoning(space)
            yield from self._source.until(marks.close, self._reasoning)
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
