"""Calls in an output: JSON objects with a name and arguments, and marks that announce them."""

from abc import abstractmethod
from collections.abc import Callable, Collection

import orjson

from pagoda_gateway.dialects.source import Reading, Source
from pagoda_gateway.dialects.stream_parser import StreamParser

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What templates that write Python's words teach models to write."""


class CallParser(StreamParser):
    """Reads one call object after the other."""

    _name_key = "name"

    def _call(
        self, held: list[str], *, known: Collection[str] | None = None, announced: bool = True
    ) -> Reading[bool]:
        """Read a call, an object that the source has next; say whether all of it was there.

        An object that is no call is content, with `held`, what was read before it. So is one that
        the text's end cuts before its name, unless it was `announced`: then it is dropped.

        Args:
            held: what belongs to the call and has been read.
            known: the names that a call may have; None: any.
            announced: nothing but a call can be meant.
        """
        call = _CallObject(
            self._source, self._name_key, held, known, self._start_call, self._arguments
        )
        if (yield from call.read()):
            return True
        cut = not call.closed and not (yield from self._source.peek())
        if cut:
            call.start_cut()
        if not (cut and (announced or call.started)):
            self._content("".join(held))
        return False

    def _call_list(self, held: list[str]) -> Reading[bool]:
        """Read the rest of a list of calls, whose bracket is the last of `held`; as `_call`."""
        while (yield from self._call(held)):
            yield from self._source.whitespace()
            if not (yield from self._source.mark(",")):
                yield from self._source.mark("]")
                return True
            held = [","]
        return False


class MarkedCallParser(CallParser):
    """Text with calls in it, each or all of them after one of these marks."""

    _marks: tuple[str, ...]

    def _read(self) -> Reading[None]:
        mark = yield from self._opened()
        while mark:
            if (yield from self._block(mark)):
                mark = yield from self._opened()
            else:
                mark = yield from self._source.until_any(self._marks, self._content)

    def _opened(self) -> Reading[str]:
        """Read up to and with the next mark; white space before the first call is no content.

        Nor is it between two calls and after the last one. "": the text has ended.
        """
        space = yield from self._source.whitespace()
        for mark in self._marks:
            if (yield from self._source.mark(mark, cut=self.has_calls)):
                return mark
        if not self.has_calls or (yield from self._source.peek()):
            self._content(space)
        return (yield from self._source.until_any(self._marks, self._content))

    @abstractmethod
    def _block(self, mark: str) -> Reading[bool]:
        """Read what follows a mark; False: text goes on, as there was no call or not all of it."""


class SectionCallParser(MarkedCallParser):
    """Text with a section of calls, each of them after a mark; models forget the section's own."""

    _section_end: str

    def _block(self, mark: str) -> Reading[bool]:
        section, call = self._marks
        held = [mark, (yield from self._source.whitespace())]
        if mark == section:
            if not (yield from self._source.mark(call, cut=True)):
                if (yield from self._source.peek()):
                    self._content("".join(held))
                return False
            held += [call, (yield from self._source.whitespace())]
        while (yield from self._one_call(held)):
            held = [(yield from self._source.whitespace())]
            if not (yield from self._source.mark(call)):
                yield from self._source.mark(self._section_end, cut=True)
                return True
            held += [call, (yield from self._source.whitespace())]
        return False

    @abstractmethod
    def _one_call(self, held: list[str]) -> Reading[bool]:
        """Read what follows a call's mark; False: there is no call, or the text has ended in it."""


class _CallObject:
    """`{"name": ..., "arguments": {...}}`, in any order; arguments go out as they arrive."""

    def __init__(
        self,
        source: Source,
        name_key: str,
        held: list[str],
        known: Collection[str] | None,
        start: Callable[[str], None],
        arguments: Callable[[str], None],
    ) -> None:
        self._source = source
        self._name_key = name_key
        self._held = held
        self._known = known
        self._start = start
        self._give_arguments = arguments
        self._name = ""
        self._arguments: str | None = None  # those that came before the name, or ""
        self.started = False
        self.closed = False

    def read(self) -> Reading[bool]:
        """Read the object; False: it is no call, or the text has ended within it."""
        if not (yield from self._sign("{")):
            return False
        while True:
            key = yield from self._string()
            if not key or not (yield from self._sign(":")):
                return False
            yield from self._space()
            if not (yield from self._member(key)):
                return False
            if (yield from self._sign("}")):
                self.closed = True
                break
            if not (yield from self._sign(",")):
                return False
        if self._name and not self.started:
            self._begin()
            self._give_arguments("{}")
        return self.started

    def start_cut(self) -> None:
        """Start the call that the text's end cut, if its name is known."""
        if self._name and not self.started:
            self._begin()

    def _member(self, key: str) -> Reading[bool]:
        if key == self._name_key and not self._name:
            name = yield from self._string()
            if not name or (self._known is not None and name not in self._known):
                return False
            self._name = name
            if self._arguments is not None:
                self._begin()
                self._give_arguments(self._arguments)
            return True
        if key in _ARGUMENTS and self._arguments is None:
            if (yield from self._source.peek()) != "{":
                return (yield from self._other_arguments())
            self._arguments = ""
            if self._name:
                self._begin()
                return (yield from self._source.json_value(self._give_arguments))
            start = len(self._held)
            whole = yield from self._source.json_value(self._held.append)
            self._arguments = "".join(self._held[start:])
            return whole
        if self._known is not None and key not in _OTHERS:
            return False
        return (yield from self._source.json_value(self._held.append))

    def _other_arguments(self) -> Reading[bool]:
        """Read arguments that are an object as JSON text, or null: no arguments."""
        start = len(self._held)
        whole = yield from self._source.json_value(self._held.append)
        arguments = _object_text("".join(self._held[start:])) if whole else ""
        if not arguments:
            return False
        self._arguments = arguments
        if self._name:
            self._begin()
            self._give_arguments(arguments)
        return True

    def _begin(self) -> None:
        self._start(self._name)
        self._held.clear()
        self.started = True

    def _sign(self, sign: str) -> Reading[bool]:
        yield from self._space()
        found = yield from self._source.mark(sign)
        if found:
            self._held.append(sign)
        return found

    def _space(self) -> Reading[None]:
        self._held.append((yield from self._source.whitespace()))

    def _string(self) -> Reading[str]:
        """Read a string; "" if there is none."""
        yield from self._space()
        if (yield from self._source.peek()) != '"':
            return ""
        start = len(self._held)
        yield from self._source.json_value(self._held.append)
        try:
            return str(orjson.loads("".join(self._held[start:])))
        except orjson.JSONDecodeError:
            return ""


def _object_text(value: str) -> str:
    """Return the object that a JSON value stands for; "": it stands for none."""
    try:
        text = orjson.loads(value)
        if text is None:
            return "{}"
        return text if isinstance(text, str) and isinstance(orjson.loads(text), dict) else ""
    except orjson.JSONDecodeError:
        return ""
