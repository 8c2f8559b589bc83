"""Which tokens made the texts of an output's blocks, and their log probabilities.

A token counts where its text does: those of reasoning, of calls and of marks count nowhere. One
whose text is in two blocks counts in the first. Knows no event and no item.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pagoda.rpc.v1.generate_pb2 import PositionLogprobs
from pagoda_gateway.dialects import BlockChange, BlockReader
from pagoda_gateway.openai.logprobs import LogprobFormat
from pagoda_gateway.sequences.output.sequence import Delta
from pagoda_gateway.text.detokenizer import Detokenizer

MAX_WAITING = 1024  # tokens whose text the parser holds back or leaves out; of more, the last


@dataclass(slots=True)
class _Token:
    text: str  # what it adds to the output; "": less than a character
    logprobs: PositionLogprobs | None  # None: it is somewhere already


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change of a block, and an entry in OpenAI's shape for each token of its new text."""

    change: BlockChange
    entries: tuple[dict[str, Any], ...] = ()


class BlockLogprobs:
    """Reads one output a token at a time, so that it is known whose text comes out of it."""

    def __init__(
        self, output: BlockReader, detokenizer: Detokenizer, form: LogprobFormat, num_top: int
    ) -> None:
        """Read with `output`; `detokenizer` knows nothing of the sequence yet."""
        self._output = output
        self._detokenizer = detokenizer
        self._form = form
        self._num_top = num_top
        self._waiting: deque[_Token] = deque(maxlen=MAX_WAITING)

    def read(self, delta: Delta, *, is_last: bool) -> Iterator[list[LoggedChange]]:
        """Yield what each new token changes; the last ends the last block."""
        at = 0
        for token_id, logprobs in zip(delta.token_ids, delta.logprobs, strict=False):
            text = self._detokenizer.push(token_id)
            if not delta.text.startswith(text, at):
                text = ""  # the token that ended the output has none
            at += len(text)
            self._waiting.append(_Token(text, logprobs))
            yield self._logged(self._output.read(text, is_last=False))
        rest = delta.text[at:]
        if rest or is_last:
            self._waiting.append(_Token(rest, None))
            yield self._logged(self._output.read(rest, is_last=is_last))

    def _logged(self, changes: list[BlockChange]) -> list[LoggedChange]:
        """Return the changes, with the tokens that made their texts."""
        texts = [change for change in changes if change.text]
        if not texts:
            return [LoggedChange(change) for change in changes]
        waiting = "".join(token.text for token in self._waiting)
        end = done = len(waiting)
        spans: dict[int, tuple[int, int]] = {}
        for change in reversed(texts):  # what came out last is what came in last
            start, size = _place(change.text, waiting, end)
            if start >= 0:
                spans[id(change)] = start, start + size
                end = start
        if id(texts[-1]) in spans:
            done = spans[id(texts[-1])][1]
        logged = [
            LoggedChange(change, self._entries(*spans[id(change)]))
            if change.block.kind == "text" and id(change) in spans
            else LoggedChange(change)
            for change in changes
        ]
        self._forget(done)
        return logged

    def _entries(self, start: int, end: int) -> tuple[dict[str, Any], ...]:
        """Return an entry for each token with text in [start, end) of what waits."""
        entries: list[dict[str, Any]] = []
        at = 0
        for token in self._waiting:
            begin, at = at, at + len(token.text)
            if token.logprobs is not None and begin < end and max(at, begin + 1) > start:
                entries += self._form.chat([token.logprobs], self._num_top)["content"]
                token.logprobs = None
        return tuple(entries)

    def _forget(self, num_chars: int) -> None:
        """Forget the first characters of what waits, and the tokens that have no others."""
        while self._waiting and num_chars >= len(self._waiting[0].text):
            if num_chars == 0:
                return
            num_chars -= len(self._waiting.popleft().text)
        if num_chars:
            self._waiting[0].text = self._waiting[0].text[num_chars:]


def _place(text: str, waiting: str, end: int) -> tuple[int, int]:
    """Return where `text` is in what waits, before `end`, and its length there; -1: it is not.

    Formats may put white space before it, and write arguments of calls in other words.
    """
    start = waiting.rfind(text, 0, end)
    if start < 0:
        text = text.lstrip()
        start = waiting.rfind(text, 0, end) if text else -1
    return start, len(text)
