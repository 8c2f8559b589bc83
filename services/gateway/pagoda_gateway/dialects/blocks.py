"""An output as a row of blocks, one after the other: text, reasoning, calls.

For APIs that name where each of them begins and ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pagoda_gateway.dialects.parts import (
    CallArguments,
    CallStart,
    ContentText,
    OutputParser,
    Part,
    ReasoningText,
    read_parts,
)


@dataclass(slots=True)
class Block:
    """One of an output's blocks.

    Attributes:
        index: of the output's blocks, from 0.
        kind: what it is.
        name: of the function that a call asks for.
        call_id: of a call.
        text: so far; of a call, its arguments as JSON.
    """

    index: int
    kind: Literal["text", "reasoning", "call"]
    name: str = ""
    call_id: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """What happened to a block: it began, it got more `text`, or it ended."""

    kind: Literal["start", "text", "end"]
    block: Block
    text: str = ""


class BlockReader:
    """Reads one output.

    Attributes:
        blocks: all that have begun.
    """

    def __init__(self, parser: OutputParser, new_call_id: Callable[[], str]) -> None:
        self.blocks: list[Block] = []
        self._parser = parser
        self._new_call_id = new_call_id
        self._changes: list[BlockChange] = []

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser.has_calls

    def read(self, text: str, *, is_last: bool) -> list[BlockChange]:
        """Return what new text changes; the last ends the last block."""
        for part in read_parts(self._parser, text, is_last=is_last):
            self._take(part)
        if is_last and self.blocks:
            self._end()
        changes, self._changes = self._changes, []
        return changes

    def _take(self, part: Part) -> None:
        match part:
            case ContentText(text):
                self._open("text")
            case ReasoningText(text):
                self._open("reasoning")
            case CallStart(_, name):
                self._begin(Block(len(self.blocks), "call", name, self._new_call_id()))
                return
            case CallArguments(_, text):
                pass  # of the call that began last
        block = self.blocks[-1]
        block.text += text
        self._changes.append(BlockChange("text", block, text))

    def _open(self, kind: Literal["text", "reasoning"]) -> None:
        if not self.blocks or self.blocks[-1].kind != kind:
            self._begin(Block(len(self.blocks), kind))

    def _begin(self, block: Block) -> None:
        if self.blocks:
            self._end()
        self.blocks.append(block)
        self._changes.append(BlockChange("start", block))

    def _end(self) -> None:
        self._changes.append(BlockChange("end", self.blocks[-1]))
