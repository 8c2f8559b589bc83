r"""JSON text with its characters written out: `b\u0061d` says the same as `bad`, and is read so.

What JSON must escape stays as it is, so the values are the same; but for `all_written_out`.
"""

import re

_WHOLE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[^u])"
)
_SHORT = {
    "\\n": "\n", "\\r": "\r", "\\t": "\t", "\\b": "\b", "\\f": "\f", '\\"': '"', "\\\\": "\\",
}  # fmt: skip
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_BEGUN = re.compile(rf"\\(?:u[0-9a-fA-F]{{0,3}})?\Z|{_HIGH}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z")


class WrittenOut:
    """One JSON text as it arrives."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """Take more text; return all but an escape that has only begun."""
        if not self._held and "\\" not in text:
            return text
        text, self._held = self._held + text, ""
        out, at = [], 0
        while (start := text.find("\\", at)) >= 0:
            out.append(text[at:start])
            if _BEGUN.match(text, start):
                self._held = text[start:]
                return "".join(out)
            escape = _WHOLE.match(text, start)
            at = escape.end() if escape else start + 1
            out.append(_character(escape) if escape else "\\")
        return "".join([*out, text[at:]])

    def flush(self) -> str:
        """Return what was held back; the text has ended."""
        held, self._held = self._held, ""
        return held


def all_written_out(text: str) -> str:
    """Return a whole JSON text with all escapes written out, those of half characters excepted."""
    if "\\" not in text:
        return text
    return _WHOLE.sub(lambda escape: _SHORT.get(escape[0]) or _character(escape, is_all=True), text)


def _character(escape: re.Match[str], *, is_all: bool = False) -> str:
    high, low, single = escape.groups()
    if high:
        code = 0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF)
    elif single:
        code = int(single, 16)
    else:
        return "/" if escape[0] == "\\/" else escape[0]
    is_kept = 0xD800 <= code < 0xE000 or (not is_all and (code < 0x20 or chr(code) in '"\\'))
    return escape[0] if is_kept else chr(code)
