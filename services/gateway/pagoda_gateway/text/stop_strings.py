"""Stop strings in a stream of text, wherever the pieces' borders fall.

Knows text only. The result does not depend on how the text was cut into pieces.
"""

from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is complete first; never lets a prefix of one out too early."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Watch for `stops` (not empty strings); `include` keeps the match in the text."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; return what can be shown now. After a match: always nothing."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, end = match
            self.matched = text[start:end]
            self._held = ""
            return text[: end if self._include else start]
        keep = self._longest_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back; the text has ended."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return [start, end) of the match that ends first, the longest of those."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end)
        return best

    def _longest_prefix(self, text: str) -> int:
        """Return the length of the longest end of `text` that a stop string could start with."""
        longest = 0
        for stop in self._stops:
            size = min(len(stop) - 1, len(text))
            start = text.find(stop[0], len(text) - size) if size > longest else -1
            while start >= 0 and len(text) - start > longest:
                if stop.startswith(text[start:]):
                    longest = len(text) - start
                    break
                start = text.find(stop[0], start + 1)
        return longest
