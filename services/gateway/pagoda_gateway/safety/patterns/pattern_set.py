"""Rules' patterns, compiled together: where the next match is, and what may become one.

RE2's automata: time is linear in the text, whatever the pattern and the text. Works on UTF-8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import re2

from pagoda_gateway.safety.patterns.expression import (
    Expression,
    ExpressionError,
    any_of,
    parse_expression,
)

MAX_COMPILED_BYTES = 64 << 20  # of one automaton; what it needs is made as texts need it


@dataclass(frozen=True, slots=True)
class PatternRule:
    """What one rule looks for.

    Attributes:
        deny: expressions whose matches count.
        allow: expressions; a match of `deny` that lies within a match of these does not count.
        ignore_case: of both.
    """

    deny: tuple[str, ...]
    allow: tuple[str, ...] = ()
    ignore_case: bool = True


class PatternSet:
    """Several rules' patterns."""

    def __init__(self, rules: Sequence[PatternRule]) -> None:
        """Compile them.

        Raises:
            ExpressionError: one cannot be used; or all together are too large.
        """
        denied = [_any(rule.deny, rule) for rule in rules]
        allowed = [_any(rule.allow, rule) if rule.allow else None for rule in rules]
        everything = any_of([*denied, *filter(None, allowed)])
        self._match = _compiled(everything.source)
        self._unfinished = _compiled(rf"{everything.unfinished}\z")
        self._rules = [
            (_compiled(deny.source), _compiled(allow.source) if allow else None)
            for deny, allow in zip(denied, allowed, strict=True)
        ]

    def first(self, text: bytes, start: int) -> int | None:
        """Return where the leftmost match from `start` on begins, of what is denied or allowed.

        Anchors see what is before. None: there is none.
        """
        found = self._match.search(text, start)
        return None if found is None else found.start()

    def denied(self, text: bytes, start: int, allowed: dict[int, int]) -> tuple[int, int] | None:
        """Return the longest match that begins at `start` and counts: its rule, and its end.

        `allowed`: how far each rule allows the text; what begins here is added.
        """
        longest: tuple[int, int] | None = None
        for number, (deny, allow) in enumerate(self._rules):
            if allow is not None and (exempt := allow.match(text, start)) is not None:
                allowed[number] = max(allowed.get(number, 0), exempt.end())
            found = deny.match(text, start)
            if found is None or found.end() <= allowed.get(number, 0):
                continue
            if longest is None or found.end() > longest[1]:
                longest = number, found.end()
        return longest

    def unfinished(self, text: bytes, start: int) -> int:
        """Return where the longest end of `text` begins that a match may begin with."""
        begin: int = self._unfinished.search(text, start).start()
        return begin


def check_expression(source: str) -> Expression:
    """Return an expression that can be looked for.

    Raises:
        ExpressionError: it cannot, and why.
    """
    _compiled(source)
    return parse_expression(source)


def _any(sources: Sequence[str], rule: PatternRule) -> Expression:
    found = any_of([check_expression(source) for source in sources])
    flags = "i" if rule.ignore_case else "-i"
    return Expression(
        f"(?{flags}:{found.source})",
        f"(?{flags}:{found.unfinished})",
        found.min_chars,
        found.max_chars,
    )


def _compiled(source: str) -> re2._Regexp:
    options = re2.Options()
    options.longest_match = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = MAX_COMPILED_BYTES
    try:
        return re2.compile(source.encode(), options)  # of bytes: offsets stay RE2's own
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ExpressionError(f"RE2 cannot compile it: {text}") from None
