r"""Patterns of ECMA-262, flag u, in the syntax of Rust's regex-syntax, which llguidance reads.

Both look alike and differ: in what `.` and `\s` are, in groups and escapes that only one of them
has, and in classes. What is alike stays as it is written. Where ECMA-262 has an older reading that
flag u forbids and that can mean one thing only, as with `\-` or a lone `}`, that is taken too.

No class has U+0000, which no output has: llguidance 1.9.1 adds the escapes of " and \ to a class of
all control characters, whether it has them or not, so that `[^"]` would let \" through.
"""

import re
from dataclasses import dataclass

UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # only as \uXXXX, which grammars exclude
_WRITABLE = r"of control characters only \b \f \n \r \t can"
_SETS = {
    "d": "[0-9]", "D": r"[^\x000-9]",
    "w": "[0-9A-Za-z_]", "W": r"[^\x000-9A-Za-z_]",
    "s": r"[[\s\x{FEFF}]--\x85]", "S": r"[[^\x00\s\x{FEFF}]\x85]",
}  # fmt: skip
_NO_LINE_END = r"[^\x00\n\r\x{2028}\x{2029}]"
_ANYTHING = r"[\x01-\x{10FFFF}]"
_CONTROLS = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
_ESCAPE = (
    r"\\(?:u\{[0-9A-Fa-f]+\}|u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}"
    r"|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|[pP]\{[^}]*\}|k<[^>]*>|[0-9]+|.)"
)
_TOKEN = re.compile(
    _ESCAPE + r"|\(\?<[^=!>][^>]*>|\(\?(?:<?[=!]|[^)]?)|(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??|.",
    re.DOTALL,
)
_IN_CLASS = re.compile(_ESCAPE + r"|&&|~~|--|.", re.DOTALL)
_NAME = re.compile(r"[^\W\d]\w*|[\w$]*\$[\w$]*")
_CATEGORY = re.compile(
    r"C[cfnos]?|L[Clmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|Letter|Mark|Number|Other"
    r"|Punctuation|Separator|Symbol|((Lower|Upper|Title)case|Modifier|Other)_Letter"
    r"|(Decimal|Letter|Other)_Number|(Nonspacing|Spacing|Enclosing)_Mark"
    r"|(Close|Connector|Dash|Final|Initial|Open|Other)_Punctuation"
    r"|(Currency|Math|Modifier|Other)_Symbol|(Line|Paragraph|Space)_Separator"
)
_SCRIPT = re.compile(r"(Script|sc|Script_Extensions|scx)=[A-Z][A-Za-z]+(_[A-Z][A-Za-z]+)*")
_BINARY = frozenset(
    ("ASCII", "ASCII_Hex_Digit", "Alpha", "Alphabetic", "Any", "Assigned", "Cased", "Dash",
     "Diacritic", "Emoji", "Emoji_Component", "Emoji_Modifier", "Emoji_Modifier_Base",
     "Emoji_Presentation", "Extended_Pictographic", "Hex_Digit", "IDC", "IDS", "ID_Continue",
     "ID_Start", "Ideographic", "Lower", "Lowercase", "Math", "Quotation_Mark", "Upper",
     "Uppercase", "White_Space", "XIDC", "XIDS", "XID_Continue", "XID_Start")
)  # fmt: skip


class PatternError(ValueError):
    """What a pattern says that no grammar holds as it is meant; the message begins in mid-line."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One item of a class: `code` is its code point; None: it is a set of them."""

    text: str
    code: int | None


def rust_pattern(pattern: str) -> str:
    """Return what matches in Rust what `pattern` does in ECMA-262.

    Raises:
        PatternError: ECMA-262 has no such pattern, or none can be enforced.
    """
    parts: list[str] = []
    names: set[str] = set()
    num_open = 0
    is_repeatable = False
    position = 0
    while position < len(pattern):
        token = _token(_TOKEN, pattern, position)
        position += len(token)
        if token == "[":
            part, position = _class(pattern, position)
        elif token[0] in "*+?" or token[0] == "{":
            part = _count(token, is_repeatable=is_repeatable)
        elif token[0] == "(":
            part = _opening(token, names)
            num_open += 1
        elif token[0] == "\\":
            part = _escaped(token)
        elif UNWRITABLE.match(token):
            raise PatternError(f"{token!r} cannot be; {_WRITABLE}")
        else:
            part = _NO_LINE_END if token == "." else token
            num_open -= token == ")"
        if num_open < 0:
            raise PatternError("a ) closes nothing")
        parts.append(part)
        is_repeatable = token[0] not in "*+?{(|^$"
    if num_open:
        raise PatternError("a ( is never closed")
    return "".join(parts)


def _token(tokens: re.Pattern[str], pattern: str, position: int) -> str:
    found = tokens.match(pattern, position)
    if found is None or found[0] == "\\":
        raise PatternError("it ends within an escape")
    return found[0]


def _count(token: str, *, is_repeatable: bool) -> str:
    if token == "{":
        raise PatternError("a { that begins no count; put a backslash before it")
    if not is_repeatable:
        raise PatternError(f"{token} repeats nothing")
    return token


def _opening(token: str, names: set[str]) -> str:
    """Return how a group begins; names go, as nothing refers to them."""
    if token in ("(", "(?:"):
        return token
    if token in ("(?=", "(?!", "(?<=", "(?<!"):
        raise PatternError(f"look-around, as {token}, is not supported")
    name = token[3:-1]
    if not token.startswith("(?<") or not _NAME.fullmatch(name):
        raise PatternError(f"{token} begins no group of ECMA-262")
    if name in names:
        raise PatternError(f"two groups are called {name}")
    names.add(name)
    return "("


def _escaped(token: str) -> str:
    """Return an escape outside of a class."""
    if token in ("\\b", "\\B"):
        raise PatternError("word boundaries are not supported")
    if token[1] == "k" or token[1] in "123456789":
        raise PatternError("backreferences are not supported")
    item = _item(token)
    if item.code is not None and UNWRITABLE.match(chr(item.code)):
        raise PatternError(f"{token} cannot be; {_WRITABLE}")
    return item.text


def _class(pattern: str, position: int) -> tuple[str, int]:
    """Return a class whose [ is behind us, and where it ends."""
    is_negated = pattern.startswith("^", position)
    position += is_negated
    items: list[_Item] = []
    while True:
        if position == len(pattern):
            raise PatternError("a [ is never closed")
        token = _token(_IN_CLASS, pattern, position)
        position += len(token)
        if token == "]":
            break
        if token in ("[", "&&", "~~", "--"):
            raise PatternError(f"it has {token} inside of []; put a backslash before each")
        items.append(_item("\\x08" if token == "\\b" else token))
    if not items and is_negated:
        return _ANYTHING, position
    if not items:
        raise PatternError("[] is a class of nothing; for a bracket put a backslash before it")
    ranges = _ranges(items)
    if not is_negated and not any(_is_writable(first, last) for _, first, last in ranges):
        raise PatternError(f"a [] has only control characters that cannot be; {_WRITABLE}")
    texts = ["^\\x00"] if is_negated else []
    return f"[{''.join([*texts, *(text for text, _, _ in ranges)])}]", position


def _ranges(items: list[_Item]) -> list[tuple[str, int | None, int | None]]:
    """Return (text, first, last) of each range; None: it is a set. Without U+0000."""
    ranges: list[tuple[str, int | None, int | None]] = []
    index = 0
    while index < len(items):
        item = items[index]
        if items[index + 1 : index + 2] == [_Item("-", 45)] and index + 2 < len(items):
            last = items[index + 2]
            if item.code is None or last.code is None:
                raise PatternError("a range in [] begins or ends with a set; escape its -")
            if item.code > last.code:
                raise PatternError("a range in [] ends before it begins")
            index += 3
            if last.code:
                first = item if item.code else _Item("\\x01", 1)
                ranges.append((f"{first.text}-{last.text}", first.code, last.code))
            continue
        is_last = index == len(items) - 1
        text = "\\-" if item.text == "-" and not is_last else item.text
        index += 1
        if item.code != 0:
            ranges.append((text, item.code, item.code))
    return ranges


def _is_writable(first: int | None, last: int | None) -> bool:
    if first is None or last is None or last - first > 0x7F:
        return True
    return any(not UNWRITABLE.match(chr(code)) for code in range(first, last + 1))


def _item(token: str) -> _Item:
    """Return what a character or an escape is, in a class or not."""
    if token[0] != "\\":
        return _Item(token, ord(token))
    kind, rest = token[1], token[2:]
    if kind in _SETS:
        return _Item(_SETS[kind], None)
    if kind in "pP" and rest:
        return _Item(_property(token), None)
    code = _code(token)
    if code is None and kind.isascii() and kind.isalnum():
        raise PatternError(f"{token} is no escape of ECMA-262")
    if code is None:
        is_known = kind.isascii() and kind.isprintable() and kind not in "<> _"
        return _Item(token if is_known else kind, ord(kind))
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise PatternError(f"{token} is no character")
    same = kind in "fnrt" or (kind == "x" and 0x20 <= code < 0x7F)
    return _Item(token if same else f"\\x{{{code:X}}}", code)


def _code(token: str) -> int | None:
    kind, rest = token[1], token[2:]
    if kind in _CONTROLS:
        return _CONTROLS[kind]
    if token == "\\0":
        return 0
    if kind == "c" and rest:
        return ord(rest) % 32
    if len(token) == 12:  # two halves
        return 0x10000 + (int(token[2:6], 16) - 0xD800) * 0x400 + int(token[8:], 16) - 0xDC00
    return int(rest.strip("{}"), 16) if kind in "xu" and rest else None


def _property(token: str) -> str:
    name = token[3:-1]
    value = name.removeprefix("General_Category=").removeprefix("gc=")
    if _CATEGORY.fullmatch(value) or _SCRIPT.fullmatch(name) or name in _BINARY:
        return f"[{token}--\\x00]"
    raise PatternError(f"{token} is no property that is known here; \\p{{L}} is one")
