"""What a moderator is, and what it says of a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a moderator says of one text.

    Attributes:
        scores: of each category, 0 to 1.
        flagged: categories that count, where nobody sets another threshold.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    flagged: frozenset[str] = frozenset()

    def reaches(self, thresholds: Mapping[str, float]) -> bool:
        """Return whether a category counts: by its threshold, or by `flagged` if there is none."""
        if not thresholds:
            return bool(self.flagged)
        return any(self.scores.get(name, 0.0) >= least for name, least in thresholds.items())


class ModeratorError(Exception):
    """A moderator could not judge; says why, never what the text was."""


class NoAnswerError(ModeratorError):
    """It said nothing in time, whatever the texts: asking of each by itself would not help."""


class Moderator(Protocol):
    """Judges texts."""

    async def judge(self, texts: Sequence[str]) -> list[Judgement]:
        """Return what it says of each text.

        Raises:
            ModeratorError: it cannot.
        """

    async def close(self) -> None:
        """Give back what it holds."""
