"""Calls of tools that take a text: read as calls of functions of one text, given as that text."""

import re
from collections.abc import Collection

from pagoda_gateway.dialects.parts import CallArguments, CallStart, OutputParser, Part

_BEGIN = re.compile(r'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*"')  # the first key, whatever its name
_BEGUN = re.compile(r'\s*(\{\s*("((?:[^"\\]|\\.)*(\\|"\s*(:\s*)?)?)?)?)?')  # a part of that
_MOST_BEGUN = 256  # more is no beginning
_WHOLE = re.compile(
    r'(?:[^"\\]+|\\u[0-9a-fA-F]{4}|\\u(?![0-9a-fA-F]{0,3}\Z)|\\[^u])*', re.DOTALL
)  # but an escape, perhaps, that is cut
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")  # half of a sign beyond 16 bits
_HIGH_CHARS = 6
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}


class TextCalls:
    """Reads an output in which calls of some tools take a text."""

    def __init__(self, parser: OutputParser, names: Collection[str]) -> None:
        """Take the parts of `parser`; `names` are those of the tools."""
        self._parser = parser
        self._names = names
        self._text: _CallText | None = None  # of the latest call

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser.has_calls

    def push(self, text: str) -> list[Part]:
        """Take more text; return the parts that are certain now."""
        return [self._read(part) for part in self._parser.push(text)]

    def flush(self) -> list[Part]:
        """Return what was held back; the output has ended."""
        return [self._read(part) for part in self._parser.flush()]

    def _read(self, part: Part) -> Part:
        match part:
            case CallStart(index, name):
                self._text = _CallText() if name in self._names else None
                return CallStart(index, name, takes_text=self._text is not None)
            case CallArguments(index, written) if self._text is not None:
                return CallArguments(index, self._text.push(written), written)
        return part


class _CallText:
    """The text in arguments that arrive in pieces, `{"input": "..."}`.

    Arguments that are no such object, as models may write them, are the text as they are.
    """

    def __init__(self) -> None:
        self._waiting = ""
        self._place = "before"

    def push(self, written: str) -> str:
        """Return more of the text; what may be a part of a sign waits."""
        waiting, self._waiting = self._waiting + written, ""
        if self._place == "before":
            begin = _BEGIN.match(waiting)
            if begin is not None and begin.end() <= _MOST_BEGUN:
                self._place, waiting = "inside", waiting[begin.end() :]
            elif len(waiting) <= _MOST_BEGUN and _BEGUN.fullmatch(waiting):
                self._waiting = waiting
                return ""
            else:
                self._place = "elsewhere"
        if self._place == "inside":
            return self._inside(waiting)
        return waiting if self._place == "elsewhere" else ""

    def _inside(self, waiting: str) -> str:
        whole = _WHOLE.match(waiting)
        assert whole is not None, "it may be empty"
        end = whole.end()
        if waiting[end : end + 1] == '"':
            self._place = "behind"
        else:
            if _ends_with_half(waiting[:end]):
                end -= _HIGH_CHARS
            self._waiting = waiting[end:]
        text = _ESCAPE.sub(_sign, waiting[:end])
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ends_with_half(text: str) -> bool:
    if not _HIGH.fullmatch(text[-_HIGH_CHARS:]):
        return False
    escaped = text[: 1 - _HIGH_CHARS]  # with its backslash; after an odd number it is no sign's
    return (len(escaped) - len(escaped.rstrip("\\"))) % 2 == 1


def _sign(escape: re.Match[str]) -> str:
    """Return what an escape stands for; one that JSON does not have stays as it is."""
    if escape[1]:
        return chr(int(escape[1], 16))
    return _SIGNS.get(escape[2], escape[0])
