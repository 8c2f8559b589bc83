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
        allow: expressions; a match of `deny`, of whichever rule, that lies within a match of these
            does not count.
        ignore_case: of both.
    """

    deny: tuple[str, ...]
    allow: tuple[str, ...] = ()
    ignore_case: bool = True


@dataclass(frozen=True, slots=True)
class Match:
    """Bytes [start, end) of a text; `rule` is its number, None: of what is allowed."""

    start: int
    end: int
    rule: int | None


class PatternSet:
    """Several rules' patterns."""

    def __init__(self, rules: Sequence[PatternRule]) -> None:
        """Compile them.

        Raises:
            ExpressionError: one cannot be used; or all together are too large.
        """
        denied = [_any(rule.deny, rule) for rule in rules]
        allowed = [_any(rule.allow, rule) for rule in rules if rule.allow]
        everything = any_of([*denied, *allowed])
        self._match = _compiled(everything.source)
        self._unfinished = _compiled(rf"{everything.unfinished}\z")
        self._rules = [_compiled(expression.source) for expression in denied]

    def first(self, text: bytes, start: int) -> Match | None:
        """Return the leftmost match from `start` on, of these the longest; None: there is none.

        Anchors see what is before.
        """
        found = self._match.search(text, start)
        if found is None:
            return None
        begin, end = found.span()
        for number, pattern in enumerate(self._rules):
            own = pattern.match(text, begin)
            if own is not None and own.end() == end:
                return Match(begin, end, number)
        return Match(begin, end, None)

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
