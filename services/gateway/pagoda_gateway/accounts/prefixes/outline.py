"""What is kept of a conversation's structure: enough to say which message a character lies in.

Knows the beginning of each text and its length, not the texts, and no API's bodies.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

MAX_PARTS = 256
MAX_TOOLS = 128
HEAD_CHARS, TAIL_CHARS = 32, 16
_MAX_FINDS = 8  # places of a head that are looked at
NAME_CHARS = 64
PART_BYTES = 160  # about what one part takes


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a request something lies.

    Attributes:
        name: "messages[0]", "tools", "template" (what the chat template adds) or "prompt".
        role: of the message; empty elsewhere.
    """

    name: str
    role: str = ""

    @property
    def is_preamble(self) -> bool:
        """Whether requests of one application usually share it."""
        return self.role in ("system", "developer") or self.name in ("tools", "template")


@dataclass(frozen=True, slots=True)
class Part:
    """One message.

    Attributes:
        role: whose.
        head, tail: its text's first and last characters.
        num_chars: of its text.
        has_calls: what follows its text is its own, up to the next message.
    """

    role: str
    head: str
    tail: str
    num_chars: int
    has_calls: bool = False

    @classmethod
    def of(cls, role: str, text: str, *, has_calls: bool = False) -> "Part":
        """Keep what is needed; templates may trim a text, so its outer space is not counted."""
        stripped = text.strip()
        return cls(
            role[:NAME_CHARS],
            stripped[:HEAD_CHARS],
            stripped[-TAIL_CHARS:],
            len(stripped),
            has_calls,
        )

    def found_in(self, text: str, cursor: int) -> int:
        """Return where the message's text begins, from `cursor` on; -1: it is not there.

        A text that is cut off behind its head is found, too.
        """
        start = text.find(self.head, cursor) if self.head else -1
        for _ in range(_MAX_FINDS):
            end = start + self.num_chars
            if start < 0 or end > len(text) or text.endswith(self.tail, start, end):
                return start
            start = text.find(self.head, start + 1)
        return -1


@dataclass(frozen=True, slots=True)
class Region:
    """Characters [start, end) of a prompt's text."""

    place: Place
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A request's structure; without parts it is one plain text.

    Attributes:
        parts: its first messages, in their order.
        tool_names: of the offered tools, in their order.
        name: of a plain text: "prompt", or "prompt[2]" of several.
    """

    parts: tuple[Part, ...] = ()
    tool_names: tuple[str, ...] = ()
    name: str = "prompt"

    @classmethod
    def of(cls, parts: Iterable[Part], tool_names: Iterable[str] = ()) -> "Outline":
        """Keep as much as is allowed."""
        names = (name[:NAME_CHARS] for name in islice(tool_names, MAX_TOOLS))
        return cls(tuple(islice(parts, MAX_PARTS)), tuple(names))

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return PART_BYTES * (len(self.parts) + len(self.tool_names))

    def regions(self, text: str) -> list[Region]:
        """Return where each message's text and the tools lie in a prompt's text, in order.

        What the template leaves out has no region; what it adds lies between them.
        """
        if not self.parts:
            return [Region(Place(self.name), 0, len(text) + 1)]
        found: list[Region] = []
        cursor = 0
        ends = dict.fromkeys((*self.tool_names[:1], *self.tool_names[-1:]))
        tools = [start for name in ends if (start := _described_at(text, name)) >= 0]
        for index, part in enumerate(self.parts):
            start = part.found_in(text, cursor)
            if tools and min(tools) < start < max(tools):  # words of a tool's description
                start = part.found_in(text, max(tools))
            if start < 0:
                continue
            cursor = min(start + part.num_chars, len(text))
            found.append(Region(Place(f"messages[{index}]", part.role), start, cursor))
        return _with_tools(text, found, tools) if tools else found

    def region_at(self, text: str, position: int) -> Region:
        """Return the region of a character; the template's are those of nobody else."""
        regions = self.regions(text)
        index = bisect_right([region.start for region in regions], position) - 1
        after = regions[index + 1] if index + 1 < len(regions) else None
        end = len(text) if after is None else after.start
        if index < 0:
            return Region(Place("template"), 0, end)
        region = regions[index]
        if position <= region.end:
            return region
        if region.place.role and self._has_calls(region.place):
            return Region(region.place, region.start, end)
        # Between two texts lies the head of the second.
        place = Place("template") if after is None else after.place
        return Region(place, region.end, end if after is None else after.end)

    def _has_calls(self, place: Place) -> bool:
        index = int(place.name.removeprefix("messages[").removesuffix("]"))
        return self.parts[index].has_calls


def _with_tools(text: str, regions: list[Region], starts: list[int]) -> list[Region]:
    """Add the gap between messages in which the tools are described."""
    before = [region for region in regions if region.end <= min(starts)]
    after = [region for region in regions if region.start >= max(starts)]
    if len(before) + len(after) < len(regions):
        return regions  # they are spread over messages: no gap is theirs
    start = before[-1].end + 1 if before else 0
    end = after[0].start - 1 if after else len(text)
    return [*before, Region(Place("tools"), start, end), *after]


def _described_at(text: str, name: str) -> int:
    found = re.search(rf'"name"\s*:\s*"{re.escape(name)}', text)
    return -1 if found is None else found.start()
