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
    are_whole,
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
        takes_text: of a call, see `CallStart`.
        text: so far; of a call, its arguments as JSON, or the text that it takes.
    """

    index: int
    kind: Literal["text", "reasoning", "call"]
    name: str = ""
    call_id: str = ""
    takes_text: bool = False
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
        self._arguments: list[str] = []  # of the latest call, as the model writes them

    @property
    def ends_with_a_call(self) -> bool:
        """Whether the last block is a call, and all of it is there."""
        is_call = bool(self.blocks) and self.blocks[-1].kind == "call"
        return is_call and are_whole("".join(self._arguments))

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
            case CallStart(_, name, takes_text):
                self._arguments = []
                call_id = self._new_call_id()
                self._begin(Block(len(self.blocks), "call", name, call_id, takes_text))
                return
            case CallArguments(_, text):  # of the call that began last
                self._arguments.append(part.json)
                if not text:
                    return
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
