"""Filters text by patterns as it arrives: what comes out does not depend on how it was cut.

Text goes out as soon as nothing that may still come can make it part of a match.
"""

from collections.abc import Callable

from pagoda_gateway.safety.patterns.expression import MAX_MATCH_CHARS
from pagoda_gateway.safety.patterns.pattern_set import PatternSet

Replace = Callable[[int], str | None]
"""Says what stands for a match of the rule with this number; None: the text ends before it."""


class StreamFilter:
    """One text's way through one set of patterns."""

    def __init__(self, patterns: PatternSet, replace: Replace) -> None:
        """Start before the text; `replace` is asked once for each match."""
        self._patterns = patterns
        self._replace = replace
        self._text = b""  # from one byte before what is undecided or not sent
        self._decided = 0  # all matches that begin before it have been found
        self._sent = 0  # more than that only after `pause`
        self._allowed: dict[int, int] = {}  # a rule's matches that end up to there do not count
        self._out: list[str] = []
        self.is_ended = False
        self.is_blocked = False  # ended by a match that nothing stands for

    def go_on_from(self, text: str) -> None:
        """Begin behind a text that is out: what matches in it alone is none of this one's."""
        end = text[-1 - MAX_MATCH_CHARS :]  # anchors see the one before
        self._text = end.encode(errors="replace")
        self._sent = len(self._text)
        while (start := self._patterns.first(self._text, self._decided)) is not None:
            self._decided = _next_character(self._text, start)
        self._decided = self._patterns.unfinished(self._text, self._decided)
        self._taken()

    def push(self, text: str) -> str:
        """Take more text; return what is certain now."""
        if self.is_ended:
            return ""
        self._text += text.encode(errors="replace")
        self._find(is_last=False)
        if not self.is_ended:
            self._decided = self._patterns.unfinished(self._text, self._decided)
            self._send(self._decided)
        return self._taken()

    @property
    def num_held(self) -> int:
        """Characters of the text that are held back, for ever once it is blocked."""
        if self._sent >= len(self._text):
            return 0
        return len(self._text[self._sent :].decode())

    def pause(self) -> str:
        """Return what was held back: something else comes between.

        Of a match that goes on behind it the rest is replaced: it is never whole in what goes out.
        """
        if self.is_ended:
            return ""
        self._find(is_last=True)
        if not self.is_ended:
            self._decided = self._patterns.unfinished(self._text, self._decided)
            self._send(len(self._text))
        return self._taken()

    def flush(self) -> str:
        """Return what was held back; the text has ended."""
        if self.is_ended:
            return ""
        self._find(is_last=True)
        if not self.is_ended:
            self._send(len(self._text))
        self.is_ended = True
        return self._taken()

    def _find(self, *, is_last: bool) -> None:
        """Act on every match of which no later text can make another one."""
        while (start := self._patterns.first(self._text, self._decided)) is not None:
            if not is_last and self._patterns.unfinished(self._text, self._decided) <= start:
                return
            denied = self._patterns.denied(self._text, start, self._allowed)
            if denied is None:
                self._decided = _next_character(self._text, start)
                continue
            rule, end = denied
            self._send(start)
            replacement = self._replace(rule)
            if replacement is None:
                self.is_ended = self.is_blocked = True
                return
            self._out.append(replacement)
            self._decided = end
            self._sent = max(self._sent, end)

    def _send(self, end: int) -> None:
        if end > self._sent:
            self._out.append(self._text[self._sent : end].decode())
            self._sent = end

    def _taken(self) -> str:
        """Return what goes out, and forget all but one byte of what is decided and sent."""
        done = min(self._decided, self._sent) - 1
        if done > 0:
            self._text = self._text[done:]
            self._decided -= done
            self._sent -= done
            if self._allowed:
                self._allowed = {n: end - done for n, end in self._allowed.items() if end > done}
        out, self._out = "".join(self._out), []
        return out


def _next_character(text: bytes, start: int) -> int:
    start += 1
    while start < len(text) and text[start] & 0xC0 == 0x80:
        start += 1
    return start
