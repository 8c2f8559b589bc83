"""Token ids to text, a few at a time, never with half a character.

Two ways. Byte-level vocabularies (GPT-2, Llama 3, Qwen): each token is a byte string, so an
incremental UTF-8 decoder is exact and cheap. Others (SentencePiece): decode a small window twice
and take the difference; those of their tokens that are one byte each go the first way.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
# A character has four bytes at most; what is still broken after this many tokens stays broken.
_MAX_PENDING_TOKENS = 6
_CONTEXT_TOKENS = 6
_UTF8_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """One sequence's text as its tokens arrive."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""

    def flush(self) -> str:
        """Return what an unfinished character leaves; the sequence has ended."""


class Decoder(Protocol):
    """Whole token lists to text; a tokenizer."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of all of them."""


class ByteLevelDetokenizer:
    """For vocabularies whose tokens are byte strings."""

    def __init__(self, token_bytes: Sequence[bytes], skipped: frozenset[int]) -> None:
        """Use the table of each token's bytes; tokens in `skipped` (special ones) have no text."""
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = _UTF8_DECODER(errors="replace")
        self._is_within = False  # a character, of which some bytes have come

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        if token_id in self._skipped or token_id >= len(self._token_bytes):
            return ""
        new = self._token_bytes[token_id]
        if not self._is_within and new.isascii():  # nearly every token of most texts
            return new.decode()
        text = self._decoder.decode(new)
        self._is_within = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Return U+FFFD for a character whose bytes never came."""
        self._is_within = False
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """For any other vocabulary: text of (context + new tokens) minus text of the context."""

    def __init__(
        self, decoder: Decoder, context: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        """Start after `context`, the prompt's last tokens: they decide about leading spaces."""
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._context = list(context[-_CONTEXT_TOKENS:])
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        self._pending.append(token_id)
        text = self._difference()
        if not text or (text.endswith(REPLACEMENT) and len(self._pending) < _MAX_PENDING_TOKENS):
            if len(self._pending) > 4 * _MAX_PENDING_TOKENS:  # tokens without text: keep it short
                self._context, self._pending = self._pending[-_CONTEXT_TOKENS:], []
            return ""
        self._context, self._pending = self._pending, []
        return text

    def flush(self) -> str:
        """Return what is left, a broken character as U+FFFD."""
        text = self._difference() if self._pending else ""
        self._context, self._pending = self._pending, []
        return text

    def pass_by(self, token_id: int) -> str:
        """Return what is left before a token whose text is made elsewhere."""
        text = self.flush() if self._pending else ""
        self._context = [*self._context, token_id][-_CONTEXT_TOKENS:]
        return text

    def _difference(self) -> str:
        before = self._decoder.decode(self._context, skip_special_tokens=self._skip)
        after = self._decoder.decode(self._context + self._pending, skip_special_tokens=self._skip)
        return after[len(before) :]


class ByteFallbackDetokenizer:
    """For a window's vocabulary that spells rare characters by a token for each byte.

    What is no UTF-8 is U+FFFD once for each unfinished character, as in byte-level vocabularies.
    """

    def __init__(
        self, window: WindowDetokenizer, bytes_: Mapping[int, bytes], skipped: frozenset[int]
    ) -> None:
        """Give a window the tokens that are not in `bytes_`; those in `skipped` have no text."""
        self._window = window
        self._bytes = bytes_
        self._skipped = skipped
        self._decoder = _UTF8_DECODER(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        if token_id in self._skipped:
            return ""
        byte = self._bytes.get(token_id)
        if byte is None:
            return self._decoder.decode(b"", True) + self._window.push(token_id)
        return self._window.pass_by(token_id) + self._decoder.decode(byte)

    def flush(self) -> str:
        """Return what is left, an unfinished character as U+FFFD."""
        return self._decoder.decode(b"", True) + self._window.flush()


class KeepingDetokenizer:
    """Another detokeniser that skips special tokens, and the texts of a few that it must not."""

    def __init__(self, detokenizer: Detokenizer, kept: Mapping[int, str]) -> None:
        self._detokenizer = detokenizer
        self._kept = kept

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        text = self._kept.get(token_id)
        if text is None:
            return self._detokenizer.push(token_id)
        return self._detokenizer.flush() + text

    def flush(self) -> str:
        """Return what is left."""
        return self._detokenizer.flush()
