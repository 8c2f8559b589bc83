"""Lines of a file that comes in chunks; one that is too long is counted and not kept."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

_LINES_AT_ONCE = 256  # then others have their turn: a chunk may have as many lines as bytes


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank.

    Attributes:
        number: in the file, from 1, blank ones counted.
        size: bytes, without the line feed.
        text: None if it is longer than a line may be.
    """

    number: int
    size: int
    text: bytes | None


async def read_lines(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[Line]:
    """Yield the lines in `chunks`; a line has `max_bytes` at most."""
    number, size = 1, 0
    held: list[bytes] = []  # the beginning of the line, while it may yet be short enough
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            if line := _line(number, size + len(part), [*held, part], max_bytes):
                yield line
            number, size, held = number + 1, 0, []
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        size += len(rest)
        held = [*held, rest] if size <= max_bytes else []
    if line := _line(number, size, held, max_bytes):
        yield line


def _line(number: int, size: int, parts: list[bytes], max_bytes: int) -> Line | None:
    if size > max_bytes:
        return Line(number, size, None)
    text = b"".join(parts)
    return Line(number, size, text) if text.strip() else None
