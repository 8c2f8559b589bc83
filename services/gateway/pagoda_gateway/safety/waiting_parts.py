"""Parts of an output that moderators have not judged yet.

They are judged in windows that begin at multiples of a number of characters, however the text came:
so what goes out before a refusal does not depend on how fast model and moderators are.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from pagoda_gateway.dialects import CallArguments, CallStart, ContentText, Part, ReasoningText


class WaitingParts:
    """In order, each with how much of the output was through the filters when it was.

    Attributes:
        num_through: of the parts that were let go, that number of the last one.
    """

    def __init__(self, window_chars: int, overlap_chars: int) -> None:
        """Judge `window_chars` at a time, behind the `overlap_chars` before them."""
        self.num_through = 0
        self._window = window_chars
        self._overlap = overlap_chars
        self._parts: deque[tuple[Part, int]] = deque()
        self._num_chars = 0  # not judged
        self._num_begun = 0  # of the first part, judged already: half a name does not go out
        self._before = ""  # the end of what was judged

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def has_window(self) -> bool:
        """Whether there is a whole one."""
        return self._num_chars >= self._window

    def add(self, part: Part, num_through: int) -> None:
        """Have one more wait."""
        self._parts.append((part, num_through))
        self._num_chars += len(text_of(part))

    def clear(self) -> None:
        """Forget all of them."""
        self._parts.clear()
        self._num_chars = self._num_begun = 0

    def windows(self, *, is_ended: bool) -> list[str]:
        """Return what is to be judged next: whole windows, and at the end what is left."""
        new = "".join(text_of(part) for part, _ in self._parts)[self._num_begun :]
        end = len(new) if is_ended else len(new) // self._window * self._window
        before, windows = self._before, []
        for start in range(0, end, self._window):
            windows.append(before + new[start : min(start + self._window, end)])
            before = self._end_of(windows[-1])
        return windows

    def let_go(self, windows: list[str], *, is_all: bool) -> Iterator[Part]:
        """Yield the parts, or their beginnings, that these windows have, the first of `windows`.

        is_all: nothing waits behind them.
        """
        num_chars = self._num_begun + min(len(windows) * self._window, self._num_chars)
        if windows:
            self._before = self._end_of(windows[-1])
        self._num_chars -= num_chars - self._num_begun
        while self._parts and (num_chars > 0 or is_all):
            part, num_through = self._parts[0]
            text = text_of(part)
            if len(text) > num_chars:
                break
            self._parts.popleft()
            num_chars -= len(text)
            self.num_through = num_through
            yield part
        self._num_begun = num_chars
        if num_chars and not isinstance(part, CallStart):
            self._num_begun = 0
            # Where the filters have put other text in its place, it counts with the rest of it.
            if num_through - self.num_through == len(text):
                self.num_through += num_chars
            self._parts[0] = replace(part, text=text[num_chars:]), num_through
            yield _beginning(part, text[:num_chars])

    def _end_of(self, window: str) -> str:
        return window[-self._overlap :] if self._overlap else ""


def _beginning(part: ContentText | ReasoningText | CallArguments, text: str) -> Part:
    if isinstance(part, CallArguments):  # how the model wrote it comes with the rest
        return replace(part, text=text, written=None if part.written is None else "")
    return replace(part, text=text)


def text_of(part: Part) -> str:
    """Return what of a part is judged."""
    return part.name if isinstance(part, CallStart) else part.text
