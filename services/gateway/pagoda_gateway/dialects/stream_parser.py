"""What all parsers have in common: a generator that reads the source, and the parts that it found.

Knows no marks.
"""

from abc import ABC, abstractmethod

from pagoda_gateway.dialects.parts import CallArguments, CallStart, ContentText, Part
from pagoda_gateway.dialects.source import Reading, Source


class StreamParser(ABC):
    """An output parser whose `_read` reads the source to its end."""

    def __init__(self) -> None:
        self._source = Source()
        self._parts: list[Part] = []
        self._num_calls = 0
        self._reading = self._read()

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._num_calls > 0

    def push(self, text: str) -> list[Part]:
        """Take more text; return the parts that are certain now."""
        self._source.push(text)
        return self._advance()

    def flush(self) -> list[Part]:
        """Return what was held back; the output has ended."""
        self._source.ended = True
        return self._advance()

    @abstractmethod
    def _read(self) -> Reading[None]:
        """Read the source to its end."""

    def _advance(self) -> list[Part]:
        next(self._reading, None)
        parts, self._parts = self._parts, []
        return parts

    def _content(self, text: str) -> None:
        if text:
            self._parts.append(ContentText(text))

    def _start_call(self, name: str) -> None:
        self._parts.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def _arguments(self, text: str) -> None:
        self._parts.append(CallArguments(self._num_calls - 1, text))


class ContentParser:
    """All text is content."""

    has_calls = False

    def push(self, text: str) -> list[Part]:
        """Return it."""
        return [ContentText(text)] if text else []

    def flush(self) -> list[Part]:
        """Return nothing: nothing was held back."""
        return []
