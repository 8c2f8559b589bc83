"""A regular expression of RE2's, and beside it: what a match of it may begin with.

Text that ends with such a beginning is held back until more of it has come. Both are written from
one reading of the source, so they cannot disagree; RE2 alone says what a class or an escape means.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_gateway.errors import shorten

MAX_SOURCE_CHARS = 512
MAX_MATCH_CHARS = 1000
MAX_DEPTH = 32

_COUNTS = re.compile(r"\{(\d+)(,?)(\d*)\}")
_GROUP = re.compile(r"\((\?:|\?P?<\w+>)?")
_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{\^?\w+\}|\w)|x(?:\{[0-9a-fA-F]+\}|[0-9a-fA-F]{2})|[0-7]{1,3}|.)", re.S
)
_CLASS = re.compile(r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]", re.S)
_WIDTHLESS = {"^", "$", r"\A", r"\z", r"\b", r"\B"}


class ExpressionError(ValueError):
    """The expression cannot be looked for in a stream; says why and what to write."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression, or a part of one.

    Attributes:
        source: RE2's, without groups that capture.
        unfinished: RE2's, of what a match may begin with, or nothing. Of a text with such an end
            nobody knows yet whether there is a match, or where it ends.
        min_chars, max_chars: of a match.
    """

    source: str
    unfinished: str
    min_chars: int
    max_chars: int


def parse_expression(source: str) -> Expression:
    """Read what RE2 has compiled.

    Raises:
        ExpressionError: a match could be empty, or longer than a stream may be held back.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise ExpressionError(
            f"it has {len(source)} characters; the limit is {MAX_SOURCE_CHARS}: write several"
        )
    found = _Reader(source).read()
    if not found.min_chars:
        raise ExpressionError("it matches the empty text, so everything; let it match something")
    if found.max_chars > MAX_MATCH_CHARS:
        raise ExpressionError(
            f"a match can have {found.max_chars} characters, and so much of a stream would be held "
            f"back; the limit is {MAX_MATCH_CHARS}"
        )
    return found


class _Reader:
    """Reads the structure alone: classes and escapes go on as they are."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def read(self) -> Expression:
        found = self._alternatives()
        if self._at < len(self._source):
            raise ExpressionError(f"nothing opens the ')' at character {self._at + 1}")
        return found

    def _alternatives(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"its groups are nested more than {MAX_DEPTH} deep")
        branches = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else any_of(branches)

    def _sequence(self) -> Expression:
        items: list[Expression] = []
        while self._next() not in ("", "|", ")"):
            items.append(self._counted(self._item()))
        unfinished = ""
        for item in reversed(items):
            longer = f"{item.source}{unfinished}" if item is not items[-1] else ""
            unfinished = f"(?:{item.unfinished}|{longer})" if longer else item.unfinished
        return Expression(
            "".join(item.source for item in items),
            unfinished,
            sum(item.min_chars for item in items),
            sum(item.max_chars for item in items),
        )

    def _item(self) -> Expression:
        sign = self._next()
        if sign == "(":
            return self._group()
        if sign == "[":
            text = self._take(_CLASS)
        elif sign == "\\":
            text = self._take(_ESCAPE)
            if text in (r"\Q", r"\E", r"\C"):
                raise ExpressionError(f"{text} is not supported; write what it stands for")
        else:
            text = sign
            self._at += 1
        width = 0 if text in _WIDTHLESS else 1
        return Expression(text, "", width, width)

    def _group(self) -> Expression:
        opening = self._take(_GROUP)
        if opening == "(" and self._next() == "?":
            raise ExpressionError(
                f"flags such as {shorten(self._source[self._at - 1 : self._at + 3])} are not "
                "supported; the rule's ignore_case is"
            )
        found = self._alternatives()
        self._at += 1  # RE2 has seen that it is closed
        return Expression(f"(?:{found.source})", found.unfinished, found.min_chars, found.max_chars)

    def _counted(self, item: Expression) -> Expression:
        while True:
            counts = self._counts()
            if counts is None:
                return item
            if self._next() == "?":  # as short as can be: the longest counts here
                self._at += 1
            item = _repeated(item, *counts)

    def _counts(self) -> tuple[int, int] | None:
        """Read how often the item before may come; None: it says nothing."""
        sign = self._next()
        if sign == "?":
            self._at += 1
            return 0, 1
        counts = _COUNTS.match(self._source, self._at) if sign == "{" else None
        if sign in ("*", "+") or (counts is not None and counts[2] and not counts[3]):
            written = counts[0] if counts is not None else sign
            raise ExpressionError(
                f"'{written}' at character {self._at + 1} has no upper bound, and a stream cannot "
                "be held back for ever; write {0,20} or another bound"
            )
        if counts is None:
            return None
        self._at = counts.end()
        return int(counts[1]), int(counts[3] or counts[1])

    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _take(self, what: re.Pattern[str]) -> str:
        found = what.match(self._source, self._at)
        if found is None:
            raise ExpressionError(f"it cannot be read from character {self._at + 1} on")
        self._at = found.end()
        return found[0]


def any_of(branches: Sequence[Expression]) -> Expression:
    """Return what matches what one of them matches."""
    return Expression(
        "(?:" + "|".join(branch.source for branch in branches) + ")",
        "(?:" + "|".join(branch.unfinished for branch in branches) + ")",
        min(branch.min_chars for branch in branches),
        max(branch.max_chars for branch in branches),
    )


def _repeated(item: Expression, least: int, most: int) -> Expression:
    whole = f"(?:{item.source}){{{least},{most}}}"
    unfinished = item.unfinished
    if most == 0:
        unfinished = ""
    elif most > 1:
        unfinished = f"(?:{item.source}){{0,{most - 1}}}(?:{item.unfinished})"
    return Expression(f"(?:{whole})", unfinished, least * item.min_chars, most * item.max_chars)
