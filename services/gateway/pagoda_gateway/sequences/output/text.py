"""The text of one output: whole characters, up to a stop string, through its guard."""

from collections import deque
from collections.abc import Sequence

from pagoda_gateway.sequences.output.guard import OutputGuard
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.text.stop_strings import StopStrings
from pagoda_gateway.text.tokenizer import ModelTokenizer


class OutputText:
    """Makes text of tokens. Tokens go in with `push`; what can be shown comes out with `read`."""

    __slots__ = (
        "_coming", "_detokenizer", "_guard", "_held", "_last", "_min_tokens", "_num_chars",
        "_num_passed", "_num_shown", "_read", "_stops", "pieces",
    )  # fmt: skip

    def __init__(
        self,
        prompt_ids: Sequence[int],
        tokenizer: ModelTokenizer,
        options: OutputOptions,
        guard: OutputGuard | None,
    ) -> None:
        """Start empty; see `OutputSequence`."""
        self._detokenizer = tokenizer.detokenizer(
            prompt_ids,
            skip_special_tokens=options.skip_special_tokens,
            kept=options.kept_token_ids,
        )
        self._stops = StopStrings(options.stops, include=options.include_stop)
        self._min_tokens = options.min_tokens
        self._guard = guard
        # Tokens that the client may not have yet, (how many, where their text ends): those whose
        # text its guard has not got, for half a character or for what may be a stop string, and
        # those of which it has got nothing, as it was a mark or may become one; and (how many, with
        # which of its characters they are shown) of the others. How many the client has.
        self._coming: deque[tuple[int, int]] = deque()
        self._read: list[tuple[int, int]] = []
        self._held: deque[tuple[int, int]] = deque()
        self._last = (0, 0)  # of the latest: where its text ends, and what it is shown with
        self._num_shown = 0
        self._num_chars = 0
        self._num_passed = 0  # of them, to the guard
        self.pieces: list[str] = []  # that nobody has read

    @property
    def matched_stop(self) -> str | None:
        """The stop string that has ended the text."""
        return self._stops.matched

    @property
    def num_shown(self) -> int:
        """Tokens of which its guard holds nothing back."""
        assert self._guard is not None, "nobody else is asked"
        num_chars = self._guard.num_shown
        while self._held and self._held[0][1] <= num_chars:
            self._num_shown = self._held.popleft()[0]
        return self._num_shown

    def keep_shown(self, token_ids: list[int]) -> None:
        """Forget the tokens that a guard has ended the output before: nobody gets or pays them."""
        if self._guard is not None and self._guard.is_blocked and not self._guard.is_pending:
            del token_ids[self.num_shown :]

    def push_plain(self, token_id: int) -> None:
        """Take a token of an output that has no stop strings and no guard."""
        if text := self._detokenizer.push(token_id):
            self.pieces.append(text)

    def push(self, token_id: int, num_tokens: int, *, hide: bool) -> None:
        """Take a token, with which the output has so many; `hide`: it has no text."""
        text = "" if hide else self._detokenizer.push(token_id)
        self._num_chars += len(text)
        if self._guard is not None:
            is_within = not text and not hide  # a character, or it has no text: as its successor
            self._coming.append((num_tokens, self._num_chars + is_within))
        self._show(self._stops.push(text) if num_tokens > self._min_tokens else text)

    def show_rest(self) -> None:
        """Show what was held back for a stop string; no token will follow."""
        rest = self._detokenizer.flush()
        self._num_chars += len(rest)
        self._show(self._stops.push(rest))
        if self._stops.matched is None:
            self._show(self._stops.flush())

    def add(self, text: str) -> None:
        """Have text read that the guard has let go."""
        if text:
            self.pieces.append(text)

    def read(self) -> str:
        """Return what can be shown and nobody has read."""
        pieces = self.pieces
        if len(pieces) == 1:  # nearly always
            return pieces.pop()
        self.pieces = []
        return "".join(pieces)

    def _show(self, text: str) -> None:
        guard = self._guard
        if guard is not None:
            before = guard.num_taken
            self._num_passed += len(text)
            text = guard.push(text) if text else ""
            self._place(before, guard.num_taken)
        self.add(text)

    def _place(self, before: int, taken: int) -> None:
        """Find out with which characters tokens are shown, now that a guard has taken so many.

        It takes no marks of calls or thoughts: their tokens come with the character behind them.
        """
        while self._coming and self._coming[0][1] <= self._num_passed:
            num_tokens, end = self._coming.popleft()
            if end == self._last[0] > 0 and not self._read:  # of the same character, or without any
                self._held.append((num_tokens, self._last[1]))
            else:
                self._read.append((num_tokens, end))
        if taken == before:
            return
        for num_tokens, end in self._read:
            with_char = max(taken - (self._num_passed - end), before + 1)
            self._held.append((num_tokens, with_char))
            self._last = end, with_char
        self._read.clear()
