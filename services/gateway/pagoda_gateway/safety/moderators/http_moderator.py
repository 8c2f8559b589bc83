"""A moderator elsewhere, asked as OpenAI's POST /v1/moderations is."""

from collections.abc import Sequence
from typing import Any

import httpx
import orjson

from pagoda_gateway.safety.moderators.base import Judgement, ModeratorError, NoAnswerError
from pagoda_gateway.safety.policies.file import HttpModeratorSettings, SafetyFileError

MAX_ANSWER_BYTES = 4 << 20


class HttpModerator:
    """One service. Who calls sets the deadline and how many ask at once."""

    def __init__(self, settings: HttpModeratorSettings) -> None:
        """Connect with the first question.

        Raises:
            SafetyFileError: the file of its key cannot be read.
        """
        self._settings = settings
        headers = {"content-type": "application/json"}
        if settings.api_key_file is not None:
            headers["authorization"] = f"Bearer {_first_line(settings)}"
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=settings.timeout_seconds,
            limits=httpx.Limits(max_connections=settings.max_concurrent),
            trust_env=False,
        )

    async def judge(self, texts: Sequence[str]) -> list[Judgement]:
        """See `Moderator.judge`."""
        question: dict[str, Any] = {"input": list(texts)}
        if self._settings.model:
            question["model"] = self._settings.model
        try:
            async with self._client.stream(
                "POST", self._settings.url, content=orjson.dumps(question)
            ) as answer:
                raw = await _body(answer)
                if answer.status_code != 200:
                    raise ModeratorError(f"it answers with status {answer.status_code}")
        except httpx.HTTPError as error:
            raise NoAnswerError(f"it cannot be asked: {type(error).__name__}") from None
        return _judgements(raw, len(texts))

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def _first_line(settings: HttpModeratorSettings) -> str:
    path = settings.api_key_file
    assert path is not None, "asked for only where there is one"
    try:
        return path.read_text().split("\n", 1)[0].strip()
    except OSError as error:
        raise SafetyFileError(f"api_key_file {path} cannot be read: {error.strerror}") from error


async def _body(answer: httpx.Response) -> bytes:
    raw = b""
    async for part in answer.aiter_bytes():
        raw += part
        if len(raw) > MAX_ANSWER_BYTES:
            raise ModeratorError(f"its answer is larger than {MAX_ANSWER_BYTES} bytes")
    return raw


def _judgements(raw: bytes, num_texts: int) -> list[Judgement]:
    try:
        results = orjson.loads(raw)["results"]
        judgements = [_judgement(result) for result in results]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise ModeratorError("its answer is none of /v1/moderations") from None
    if len(judgements) != num_texts:
        raise ModeratorError(f"it judged {len(judgements)} texts, not {num_texts}")
    return judgements


def _judgement(result: dict[str, Any]) -> Judgement:
    scores = {str(name): float(score) for name, score in result["category_scores"].items()}
    flagged = frozenset(str(name) for name, is_set in result["categories"].items() if is_set)
    if result["flagged"] and not flagged:
        flagged = frozenset({"flagged"})
    return Judgement(scores, flagged)
