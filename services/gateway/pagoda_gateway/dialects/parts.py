"""What an output consists of: content, reasoning, and calls of tools."""

import json
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; `index` counts the calls of one output from 0.

    `takes_text`: what it takes is a text, not JSON, see `text_calls.py`.
    """

    index: int
    name: str
    takes_text: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: JSON text, exactly as the model writes it; or the text it takes.

    `written`: as the model writes it, where the call takes a text.
    """

    index: int
    text: str
    written: str | None = None

    @property
    def json(self) -> str:
        """What the model has written."""
        return self.text if self.written is None else self.written


Part = ContentText | ReasoningText | CallStart | CallArguments


class OutputParser(Protocol):
    """One output as its text arrives, cut anywhere: the parts' concatenation is always the same."""

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""

    def push(self, text: str) -> list[Part]:
        """Take more text; return the parts that are certain now."""

    def flush(self) -> list[Part]:
        """Return what was held back; the output has ended."""


class Without:
    """Reads an output whose parts of one kind nobody wants.

    An answer that must be a call has no content: what looks like it is a call cut before its name.
    """

    def __init__(self, kind: type[ContentText | ReasoningText], parser: OutputParser) -> None:
        self._kind = kind
        self._parser = parser

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser.has_calls

    def push(self, text: str) -> list[Part]:
        """Take more text; return the parts that are certain now."""
        return self._wanted(self._parser.push(text))

    def flush(self) -> list[Part]:
        """Return what was held back; the output has ended."""
        return self._wanted(self._parser.flush())

    def _wanted(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if not isinstance(part, self._kind)]


def are_whole(arguments: str) -> bool:
    """Tell whether all of a call's arguments are there: an output may have been cut within it."""
    try:
        json.loads(arguments, strict=False)  # models write newlines as they are
    except (ValueError, RecursionError):
        return False
    return True


def read_parts(parser: OutputParser, text: str, *, is_last: bool) -> list[Part]:
    """Return what more text makes certain, and at the end all the rest."""
    parts = parser.push(text) if text else []
    return [*parts, *parser.flush()] if is_last else parts
