"""One output on its way to the client: read into parts, each filtered, then judged.

Content, reasoning and the arguments of each call are texts of their own. Where another part comes
between, what is held back goes out, and a match that goes on behind it is still found: it is never
whole in what the client gets.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from pagoda_gateway.dialects import (
    CallArguments,
    CallStart,
    ContentText,
    OutputParser,
    Part,
    ReasoningText,
    are_whole,
)
from pagoda_gateway.safety.json_escapes import WrittenOut
from pagoda_gateway.safety.patterns.text_filter import Note, TextFilter
from pagoda_gateway.safety.policies.policy import Rules
from pagoda_gateway.safety.waiting_parts import WaitingParts, text_of


class OutputGuard:
    """Takes an output's text as the model writes it; gives out what the client may have.

    Where the output has parts, they go out by `parser`, and what `push` returns only says that
    there are some.

    Attributes:
        is_blocked: a rule has ended the output; nothing that follows goes out.
    """

    def __init__(
        self, rules: Rules, parser: OutputParser | None, note: Note, *, echoed: str = ""
    ) -> None:
        """Read with `parser`; None: all text is content. `note` hears of rules that match.

        `echoed`: of the prompt, what the client gets before the content and as one with it.
        """
        self.is_blocked = False
        self._rules = rules
        self._note = note
        self._parser = parser
        self._texts = {
            kind: rules.patterns.new_filter(note) for kind in (ContentText, ReasoningText)
        }
        if echoed:
            self._texts[ContentText].go_on_from(echoed)
        self._arguments: _Arguments | None = None  # of the call that is being written
        self._num_taken_before = 0  # characters of names, and of calls that are over
        self._num_lost = 0  # of these, those that never go out
        self._last: type[Part] | None = None
        self._is_ended = False
        self._wake = asyncio.Event()
        self._ready: list[Part] = []  # not read yet
        self._shown: list[str] = []
        moderators = [rule.moderator for rule in rules.moderated]
        self._waiting = WaitingParts(
            min((m.window_chars - m.overlap_chars for m in moderators), default=0),
            max((m.overlap_chars for m in moderators), default=0),
        )

    @property
    def is_pending(self) -> bool:
        """Whether the moderators have not judged all of it yet."""
        return bool(self._waiting)

    @property
    def num_taken(self) -> int:
        """Characters that filters have got so far, of all parts."""
        return self._num_taken_before + sum(text.num_taken for text in self._filters())

    @property
    def num_shown(self) -> int:
        """How many of those have gone out, or what stands for them."""
        is_judged = self._waiting or (self.is_blocked and self._rules.moderated)
        return self._waiting.num_through if is_judged else self._num_filtered()

    @property
    def parser(self) -> "GuardedParser":
        """What reads the parts that went through here, instead of the text."""
        return GuardedParser(self)

    def push(self, text: str) -> str:
        """Take more text; return what is certain now."""
        if self.is_blocked or self._is_ended:
            return ""
        self._take_all(self._parser.push(text) if self._parser else [ContentText(text)])
        return self.shown()

    def flush(self) -> str:
        """Return what was held back; the output has ended."""
        if not self._is_ended:
            self._is_ended = True
            if not self.is_blocked:
                self._take_all(self._parser.flush() if self._parser else [])
                if not self.is_blocked:
                    self._finish_call()
                for kind, text in self._texts.items():
                    if not self.is_blocked:
                        self._give(kind(text.flush()), text)
            self._wake.set()
        return self.shown()

    def shown(self) -> str:
        """Return what has become certain since the last call."""
        shown, self._shown = "".join(self._shown), []
        return shown

    def read(self) -> list[Part]:
        """Return the parts that have become certain since the last call."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser is not None and self._parser.has_calls

    async def run(self, on_judged: Callable[[], None]) -> None:
        """Have windows of the output judged until its end; `on_judged` is called after each.

        Raises:
            UnavailableError: a moderator cannot judge, and what it cannot judge is refused.
        """
        while self._rules.moderated:
            await self._wake.wait()
            self._wake.clear()
            if not self._waiting:
                if self._is_ended:
                    return
                continue
            windows = self._waiting.windows(is_ended=self._is_ended)
            is_all = self._is_ended  # it may end meanwhile
            refused = await self._rules.first_refused(windows, self._note) if windows else None
            passed = windows if refused is None else windows[: refused.window]
            for part in self._waiting.let_go(passed, is_all=is_all and refused is None):
                self._show(part)
            if refused is not None:
                self.is_blocked = True
                self._waiting.clear()
            if self._is_ended or self._waiting.has_window:
                self._wake.set()
            on_judged()

    def _take_all(self, parts: list[Part]) -> None:
        for part in parts:
            if self.is_blocked:
                return
            if self._last is not None and self._is_between(part):
                self._pause()
            if not self.is_blocked:
                self._last = type(part)
                self._take(part)

    def _is_between(self, part: Part) -> bool:
        """Whether the text before this part has been left."""
        if isinstance(part, CallArguments):
            return False
        return isinstance(part, CallStart) or type(part) is not self._last

    def _pause(self) -> None:
        """Let go of what is held back in the text that another part follows."""
        if self._last in self._texts:
            text = self._texts[self._last]
            self._give(self._last(text.pause()), text)
        else:
            self._finish_call()

    def _take(self, part: Part) -> None:
        match part:
            case CallStart(index, name, takes_text):
                arguments = self._rules.patterns.new_filter(self._note)
                self._arguments = _Arguments(index, arguments, takes_text=takes_text)
                filtered = self._rules.patterns.new_filter(self._note)
                self._num_taken_before += len(name)
                allowed = filtered.push(name)
                allowed += filtered.flush()
                self.is_blocked = filtered.is_blocked  # half a name calls something else
                if self.is_blocked:
                    self._num_lost += len(name)
                else:
                    self._put(replace(part, name=allowed))
            case CallArguments():
                assert self._arguments is not None, "a call begins before its arguments"
                self._give(self._arguments.push(part), self._arguments.filter)
            case ContentText(text) | ReasoningText(text):
                filtered = self._texts[type(part)]
                self._give(replace(part, text=filtered.push(text)), filtered)

    def _finish_call(self) -> None:
        if self._arguments is not None:
            call, self._arguments = self._arguments, None
            part = call.flush()
            self._num_taken_before += call.filter.num_taken
            self._num_lost += call.filter.num_held
            self._give(part, call.filter)

    def _give(self, part: Part, filtered: TextFilter) -> None:
        """Pass on what a filter has let through."""
        if text_of(part) or (isinstance(part, CallArguments) and part.written):
            self._put(part)
        if filtered.is_blocked:
            self.is_blocked = True

    def _put(self, part: Part) -> None:
        if not self._rules.moderated:
            self._show(part)
            return
        self._waiting.add(part, self._num_filtered())
        if self._waiting.has_window:
            self._wake.set()

    def _filters(self) -> Iterator[TextFilter]:
        yield from self._texts.values()
        if self._arguments is not None:
            yield self._arguments.filter

    def _num_filtered(self) -> int:
        """Return how much of the output is through the filters."""
        num_held = sum(text.num_held for text in self._filters())
        return self.num_taken - self._num_lost - num_held

    def _show(self, part: Part) -> None:
        if self._parser is not None:
            self._ready.append(part)
        self._shown.append(text_of(part))


class GuardedParser:
    """The parser of an output that a guard has read already: see `OutputGuard`."""

    def __init__(self, guard: OutputGuard) -> None:
        self._guard = guard

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._guard.has_calls

    def push(self, _text: str) -> list[Part]:
        """Return the parts that are certain now."""
        return self._guard.read()

    def flush(self) -> list[Part]:
        """Return what is left; the output has ended."""
        return self._guard.read()


class _Arguments:
    """The arguments of one call: JSON text, or the text that it takes.

    Of how the model writes a text nothing goes on, as no filter has seen that; at the end an empty
    object says that it was whole.
    """

    def __init__(self, index: int, filtered: TextFilter, *, takes_text: bool) -> None:
        self.filter = filtered
        self._index = index
        self._written_out = None if takes_text else WrittenOut()
        self._written: list[str] = []  # of a text

    def push(self, part: CallArguments) -> CallArguments:
        if self._written_out is not None:
            return replace(part, text=self.filter.push(self._written_out.push(part.text)))
        self._written.append(part.json)
        return replace(part, text=self.filter.push(part.text), written="")

    def flush(self) -> CallArguments:
        if self._written_out is not None:
            text = self.filter.push(self._written_out.flush())
            return CallArguments(self._index, text + self.filter.flush())
        text, is_whole = self.filter.flush(), are_whole("".join(self._written))
        return CallArguments(self._index, text, "{}" if is_whole else "")
