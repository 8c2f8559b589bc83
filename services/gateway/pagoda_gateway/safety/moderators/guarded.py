"""A moderator within its bounds: so many at once, in so much time, on so much text."""

import asyncio
import logging
from collections.abc import Sequence

from pagoda_gateway import metrics
from pagoda_gateway.errors import UnavailableError
from pagoda_gateway.safety.moderators.base import (
    Judgement,
    Moderator,
    ModeratorError,
    NoAnswerError,
)
from pagoda_gateway.safety.moderators.classifier import Classifier
from pagoda_gateway.safety.moderators.http_moderator import HttpModerator
from pagoda_gateway.safety.policies.file import ClassifierSettings, ModeratorSettings

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class GuardedModerator:
    """What rules ask.

    Attributes:
        name: in the policy file.
        window_chars: judged at a time.
        overlap_chars: of the text before a window, judged again with it.
    """

    def __init__(self, name: str, settings: ModeratorSettings) -> None:
        """Load or connect it.

        Raises:
            SafetyFileError: it cannot be loaded.
        """
        self.name = name
        self.window_chars = settings.window_chars
        self.overlap_chars = settings.overlap_chars
        self._timeout_seconds = settings.timeout_seconds
        self._is_open = settings.on_failure == "open"
        self._places = asyncio.Semaphore(settings.max_concurrent)
        self._moderator: Moderator = (
            Classifier(settings)
            if isinstance(settings, ClassifierSettings)
            else HttpModerator(settings)
        )

    def windows(self, text: str) -> list[str]:
        """Return a text as pieces that are judged each on its own, overlapping."""
        step = self.window_chars - self.overlap_chars
        last = max(1, len(text) - self.overlap_chars)
        return [text[at : at + self.window_chars] for at in range(0, last, step)]

    async def judge(self, texts: Sequence[str]) -> list[Judgement]:
        """Return what it says of each text; where failures let through, nothing of any.

        Raises:
            UnavailableError: it cannot, and what it cannot judge is refused.
        """
        try:
            return await self.attempt(texts)
        except ModeratorError as error:
            return self.unjudged(error, len(texts))

    def unjudged(self, error: ModeratorError, num_texts: int) -> list[Judgement]:
        """Return what counts for so many texts that it could not judge.

        Raises:
            UnavailableError: they are refused.
        """
        metrics.MODERATOR_FAILURES.labels(self.name).inc()
        logger.warning(
            "moderator %s: %s; its texts are %s",
            self.name, error, "let through" if self._is_open else "refused",
        )  # fmt: skip
        if self._is_open:
            return [Judgement()] * num_texts
        raise UnavailableError(
            f"the moderator {self.name!r} cannot judge this text now ({error}); try again",
            retry_after_seconds=RETRY_SECONDS,
        )

    async def attempt(self, texts: Sequence[str]) -> list[Judgement]:
        """Return what it says of each text.

        Raises:
            ModeratorError: it cannot, be it of one of them.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds), self._places:
                return await self._moderator.judge(texts)
        except TimeoutError as error:
            why = str(error) or f"no answer within {self._timeout_seconds:g} s"
            raise NoAnswerError(why) from error

    async def close(self) -> None:
        """Give back what it holds."""
        await self._moderator.close()
