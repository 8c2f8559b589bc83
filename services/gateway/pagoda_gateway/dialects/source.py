"""Text that arrives in pieces, read from its front by generators.

Each reader yields when it needs more text and returns what it found. What is read is gone, so the
time is linear in the text and what waits is no longer than a mark.
"""

import re
from collections.abc import Callable, Generator
from functools import cache
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]
Sink = Callable[[str], None]

WHITESPACE = " \t\r\n"
_IN_NESTED = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'"|\\[\s\S]?')  # an escape may lack its second character yet
_AFTER_SCALAR = re.compile(r"[\s,:{}\[\]\"]")


class Source:
    """The text that nobody has read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.ended = False

    def push(self, text: str) -> None:
        """Add text to the end."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def peek(self) -> Reading[str]:
        """Return the next character, not read yet; "" at the end of the text."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def whitespace(self) -> Reading[str]:
        """Read JSON's white space, which may be none."""
        read = []
        while (char := (yield from self.peek())) and char in WHITESPACE:
            read.append(self._take(self._at + 1))
        return "".join(read)

    def mark(self, mark: str, *, cut: bool = False) -> Reading[bool]:
        """Read `mark` if the text goes on with it; `cut`: or if the text ends within it."""
        while True:
            found = self._text[self._at : self._at + len(mark)]
            if found == mark or (cut and self.ended and found and mark.startswith(found)):
                self._at += len(found)
                return True
            if self.ended or not mark.startswith(found):
                return False
            yield

    def ahead(self, *marks: str) -> Reading[bool]:
        """Return whether the text goes on with one of the marks, which is not read."""
        while True:
            if self._text.startswith(marks, self._at):
                return True
            rest = self._text[self._at : self._at + max(map(len, marks))]
            if self.ended or not any(mark.startswith(rest) for mark in marks):
                return False
            yield

    def ends_within(self, *marks: str) -> bool:
        """Drop the beginning of a mark that the text ends with; False: it does not."""
        rest = self._text[self._at :]
        found = self.ended and bool(rest) and any(mark.startswith(rest) for mark in marks)
        if found:
            self._at = len(self._text)
        return found

    def until(self, mark: str, sink: Sink) -> Reading[bool]:
        """Read up to and with `mark`; what is before it goes to `sink`. False: the text has ended.

        An end of the text that may become the mark waits.
        """
        return bool((yield from self.until_any((mark,), sink)))

    def until_any(self, marks: tuple[str, ...], sink: Sink) -> Reading[str]:
        """Read up to and with the first of `marks`, and return it; "": the text has ended.

        None of them may be within another one.
        """
        pattern = _any_of(marks)
        while True:
            found = pattern.search(self._text, self._at)
            if found:
                self._give(found.start(), sink)
                self._at = found.end()
                return found[0]
            if self.ended:
                self._give(len(self._text), sink)
                return ""
            self._give(len(self._text) - max(map(self._possible_start, marks)), sink)
            yield

    def rest(self, sink: Sink) -> Reading[None]:
        """Read all that is still to come; it goes to `sink`."""
        while True:
            self._give(len(self._text), sink)
            if self.ended:
                return
            yield

    def while_not(self, pattern: re.Pattern[str], sink: Sink) -> Reading[None]:
        """Read up to the first character that `pattern` matches, or the end; it goes to `sink`."""
        while True:
            found = pattern.search(self._text, self._at)
            self._give(found.start() if found else len(self._text), sink)
            if found or self.ended:
                return
            yield

    def word(self, end: re.Pattern[str], held: list[str]) -> Reading[str]:
        """Read up to the first character that `end` matches, or the end; add it to `held` too."""
        start = len(held)
        yield from self.while_not(end, held.append)
        return "".join(held[start:])

    def json_value(self, sink: Sink) -> Reading[bool]:
        """Read one JSON value as it is; it goes to `sink`. False: the text has ended within it.

        Knows depth, strings and escapes; does not check what is inside.
        """
        char = yield from self.peek()
        if char not in ("{", "[", '"'):
            yield from self.while_not(_AFTER_SCALAR, sink)
            return not self.ended or self._at < len(self._text)
        at, depth, in_string = self._at, 0, False
        while True:
            found = (_IN_STRING if in_string else _IN_NESTED).search(self._text, at)
            if not found or found[0] == "\\":
                if self.ended:
                    self._give(len(self._text), sink)
                    return False
                self._give(found.start() if found else len(self._text), sink)
                yield
                at = self._at
                continue
            at = found.end()
            if found[0] == '"':
                in_string = not in_string
            elif not in_string:
                depth += 1 if found[0] in "{[" else -1
            if depth == 0 and not in_string:
                self._give(at, sink)
                return True

    def _give(self, end: int, sink: Sink) -> None:
        if end > self._at:
            sink(self._take(end))

    def _take(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        return text

    def _possible_start(self, mark: str) -> int:
        """Return the length of the longest end of the text that `mark` could start with."""
        for size in range(min(len(mark) - 1, len(self._text) - self._at), 0, -1):
            if self._text.endswith(mark[:size]):
                return size
        return 0


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, marks)))
