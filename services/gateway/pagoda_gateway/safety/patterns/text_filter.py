"""One text's way through all pattern rules of a policy: block, then redact; flags beside them.

Each action has a filter of its own, so that a longer match of a milder rule hides no other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda_gateway.safety.findings import Action
from pagoda_gateway.safety.patterns.pattern_set import PatternRule, PatternSet
from pagoda_gateway.safety.patterns.stream_filter import StreamFilter

MAX_FLAGGED = 1000  # matches in one text, before a rule that has none yet is given up


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A rule by its name; `replacement` is what stands for its matches if it redacts."""

    name: str
    action: Action
    patterns: PatternRule
    replacement: str = ""


Note = Callable[[str, Action], None]
"""Hears the name and the action of a rule that matches; of one that flags, once for each text."""


class TextRules:
    """Pattern rules, compiled once; every text has its own `TextFilter`."""

    def __init__(self, rules: Sequence[NamedRule]) -> None:
        """Compile them.

        Raises:
            ExpressionError: see `PatternSet`.
        """
        self._stages: dict[Action, tuple[PatternSet, list[NamedRule]]] = {}
        for action in ("block", "redact", "flag"):
            own = [rule for rule in rules if rule.action == action]
            if own:
                self._stages[action] = (PatternSet([rule.patterns for rule in own]), own)

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule."""
        return not self._stages

    @property
    def changes_text(self) -> bool:
        """Whether a match changes what goes out."""
        return bool(self._stages.keys() - {"flag"})

    def matches(self, text: str) -> bool:
        """Return whether a rule that blocks matches."""
        filtered = self.new_filter(lambda *_: None)
        filtered.push(text)
        filtered.flush()
        return filtered.is_blocked

    def may_match(self, text: str) -> bool:
        """Return whether anything matches, what is allowed too: sooner known than filtered."""
        raw = text.encode(errors="replace")
        found = (patterns.first(raw, 0) for patterns, _ in self._stages.values())
        return any(start is not None for start in found)

    def new_filter(self, note: Note) -> "TextFilter":
        """Return the filter of one text."""
        return TextFilter(
            self._filter("block", note), self._filter("redact", note), self._filter("flag", note)
        )

    def _filter(self, action: Action, note: Note) -> StreamFilter | None:
        if action not in self._stages:
            return None
        patterns, rules = self._stages[action]
        replace = _Flags(rules, note) if action == "flag" else _Acting(rules, note)
        return StreamFilter(patterns, replace)


class _Acting:
    """What stands for the matches of rules that block or redact."""

    def __init__(self, rules: Sequence[NamedRule], note: Note) -> None:
        self._rules = rules
        self._note = note

    def __call__(self, number: int) -> str | None:
        rule = self._rules[number]
        self._note(rule.name, rule.action)
        return None if rule.action == "block" else rule.replacement


class _Flags:
    """Hears of the matches of rules that flag; once each has matched, no more is looked for."""

    def __init__(self, rules: Sequence[NamedRule], note: Note) -> None:
        self._rules = rules
        self._note = note
        self._left = set(range(len(rules)))
        self._num_matches = 0

    def __call__(self, number: int) -> str | None:
        self._num_matches += 1
        if number in self._left:
            self._left.remove(number)
            self._note(self._rules[number].name, "flag")
        return "" if self._left and self._num_matches < MAX_FLAGGED else None


class TextFilter:
    """Filters one text as it arrives; see `StreamFilter`.

    Attributes:
        is_blocked: a rule has ended the text.
        num_taken: characters pushed so far.
    """

    def __init__(
        self, block: StreamFilter | None, redact: StreamFilter | None, flag: StreamFilter | None
    ) -> None:
        self._block = block
        self._redact = redact
        self._flag = flag
        self.is_blocked = False
        self.num_taken = 0

    @property
    def num_held(self) -> int:
        """Characters of what was pushed that are held back."""
        return sum(f.num_held for f in (self._block, self._redact) if f is not None)

    def go_on_from(self, text: str) -> None:
        """See `StreamFilter.go_on_from`."""
        for stage in (self._flag, self._block, self._redact):
            if stage is not None:
                stage.go_on_from(text)

    def push(self, text: str) -> str:
        """Take more text; return what is certain now."""
        if self.is_blocked:
            return ""
        self.num_taken += len(text)
        if self._flag is not None:
            self._flag.push(text)
        if self._block is not None:
            text = self._block.push(text)
        return self._redacted(text)

    def pause(self) -> str:
        """Return what was held back: something else comes between."""
        return self._end(StreamFilter.pause)

    def flush(self) -> str:
        """Return what was held back; the text has ended."""
        return self._end(StreamFilter.flush)

    def _end(self, end: Callable[[StreamFilter], str]) -> str:
        if self.is_blocked:
            return ""
        if self._flag is not None:
            end(self._flag)
        text = self._redacted(end(self._block)) if self._block is not None else ""
        if self._redact is None or self.is_blocked:
            return text
        return text + end(self._redact)

    def _redacted(self, text: str) -> str:
        """Return text that may go out as far as the blocking rules are concerned."""
        if self._redact is not None:
            text = self._redact.push(text)
        if self._block is not None and self._block.is_blocked:
            self.is_blocked = True
            if self._redact is not None:
                text += self._redact.flush()
        return text
