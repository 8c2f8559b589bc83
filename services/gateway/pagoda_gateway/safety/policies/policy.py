"""A policy as it is applied: its rules compiled, its moderators at hand."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from pagoda_gateway.safety.findings import Direction
from pagoda_gateway.safety.moderators.base import Judgement, ModeratorError, NoAnswerError
from pagoda_gateway.safety.moderators.guarded import GuardedModerator
from pagoda_gateway.safety.patterns.expression import ExpressionError
from pagoda_gateway.safety.patterns.pattern_set import PatternRule
from pagoda_gateway.safety.patterns.text_filter import NamedRule, Note, TextRules
from pagoda_gateway.safety.policies.file import (
    PolicySettings,
    ResponseCacheSettings,
    RuleSettings,
    SafetyFileError,
)


@dataclass(frozen=True, slots=True)
class ModeratedRule:
    """A rule that a moderator decides."""

    settings: RuleSettings
    moderator: GuardedModerator


class Refused(NamedTuple):
    """Which window a rule refuses, and that rule's name."""

    window: int
    rule: str


class Rules:
    """The rules for one direction.

    Attributes:
        patterns: those of patterns.
        moderated: those of moderators.
    """

    def __init__(
        self,
        settings: Sequence[RuleSettings],
        moderators: Mapping[str, GuardedModerator],
    ) -> None:
        """Compile the patterns; `ExpressionError` if they cannot be."""
        self.patterns = TextRules([_named(rule) for rule in settings if rule.deny])
        self.moderated = [
            ModeratedRule(rule, moderators[rule.moderator]) for rule in settings if rule.moderator
        ]

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule."""
        return self.patterns.is_empty and not self.moderated

    @property
    def holds_back(self) -> bool:
        """Whether a rule can keep text from going out."""
        return self.patterns.changes_text or any(
            rule.settings.action == "block" for rule in self.moderated
        )

    async def first_refused(self, windows: Sequence[str], note: Note) -> Refused | None:
        """Ask the moderators of windows of one text; None: no rule refuses any.

        `note` hears of nothing behind what is refused first.

        Raises:
            UnavailableError: see `GuardedModerator.judge`.
        """
        left, refused = list(windows), None  # those before what is refused
        asked: dict[str, _Asked] = {}
        reached: list[tuple[int, RuleSettings]] = []
        for rule in self.moderated:
            moderator, settings = rule.moderator, rule.settings
            said = asked.setdefault(moderator.name, _Asked(moderator, left))
            for index in range(len(left)):
                judgements = await said.of(index)
                if any(judgement.reaches(settings.thresholds) for judgement in judgements):
                    reached.append((index, settings))
                    if settings.action == "block":
                        left, refused = left[:index], Refused(index, settings.name)
                        break
            if not left:
                break
        for index, settings in sorted(reached, key=itemgetter(0)):
            if refused is None or index <= refused.window:
                note(settings.name, settings.action)
        return refused


class _Asked:
    """What a moderator says of windows: of all at once, or of each when it cannot judge some."""

    def __init__(self, moderator: GuardedModerator, windows: Sequence[str]) -> None:
        self._moderator = moderator
        self._texts = [moderator.windows(window) for window in windows]
        self._said: list[list[Judgement]] = []

    async def of(self, index: int) -> list[Judgement]:
        """Return what it says of a window; those before it were asked for before.

        Raises:
            UnavailableError: see `GuardedModerator.judge`.
        """
        if not self._said and len(self._texts) > 1:
            texts = [text for some in self._texts for text in some]
            with contextlib.suppress(ModeratorError):  # what lies behind a refusal spoils nothing
                try:
                    judgements = await self._moderator.attempt(texts)
                except NoAnswerError as error:
                    judgements = self._moderator.unjudged(error, len(texts))
                judged = iter(judgements)
                self._said = [[next(judged) for _ in some] for some in self._texts]
        if index == len(self._said):
            self._said.append(await self._moderator.judge(self._texts[index]))
        return self._said[index]


class Policy:
    """Who is meant, and what is done with their texts.

    Attributes:
        name: in the policy file.
        input, output: rules for each direction.
        all_moderated: rules of moderators, whatever their direction.
        single_patterns: each rule of patterns alone, by its name, as if it blocked: together one
            may hide another.
        response_cache: how answers are kept; None: they are not.
    """

    def __init__(
        self, settings: PolicySettings, moderators: Mapping[str, GuardedModerator]
    ) -> None:
        """Compile the rules.

        Raises:
            SafetyFileError: together they are too large.
        """
        self.name = settings.name
        self.tenants = frozenset(settings.tenants)
        self.models = frozenset(settings.models)
        self.response_cache: ResponseCacheSettings | None = settings.response_cache
        self.input = self._rules(settings, "input", moderators)
        self.output = self._rules(settings, "output", moderators)
        self.all_moderated = Rules(settings.rules, moderators).moderated
        self.single_patterns = {
            rule.name: TextRules([replace(_named(rule), action="block")])
            for rule in settings.rules
            if rule.deny
        }

    @property
    def has_rules(self) -> bool:
        """Whether anything is looked for."""
        return bool(self.single_patterns or self.all_moderated)

    def _rules(
        self,
        settings: PolicySettings,
        direction: Direction,
        moderators: Mapping[str, GuardedModerator],
    ) -> Rules:
        rules = [rule for rule in settings.rules if direction in rule.where]
        try:
            return Rules(rules, moderators)
        except ExpressionError as error:
            raise SafetyFileError(
                f"the {direction} rules of policy {self.name!r} together: {error}"
            ) from None


def _named(rule: RuleSettings) -> NamedRule:
    patterns = PatternRule(tuple(rule.deny), tuple(rule.allow), rule.ignore_case)
    return NamedRule(rule.name, rule.action, patterns, rule.replacement)
