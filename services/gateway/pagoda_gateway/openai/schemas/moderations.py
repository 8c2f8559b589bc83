"""Body and answer of POST /v1/moderations."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema, field_validator

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.base import RequestBody

MAX_INPUTS = 256
MAX_INPUT_CHARS = 1 << 18  # of all texts together

_TEXT = {"type": "string"}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
}
_Inputs = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_INPUTS},
                {"type": "array", "items": _PART, "minItems": 1, "maxItems": MAX_INPUTS},
            ]
        }
    ),
]


class ModerationBody(RequestBody):
    """Texts to be judged."""

    input: _Inputs  # after its check: a list of texts; parts of one text are one
    model: str | None = Field(None, max_length=512)

    @field_validator("input")
    @classmethod
    def _check_input(cls, value: Any) -> list[str]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not 1 <= len(items) <= MAX_INPUTS:
            raise InvalidRequestError(
                f"'input' must be a text, or a list of 1 to {MAX_INPUTS} of them, not "
                f"{shorten(value)}",
                param="input",
            )
        if not all(isinstance(item, str) for item in items):
            items = ["\n".join(_part_text(index, item) for index, item in enumerate(items))]
        num_chars = sum(map(len, items))
        if num_chars > MAX_INPUT_CHARS:
            raise InvalidRequestError(
                f"'input' has {num_chars} characters; the limit is {MAX_INPUT_CHARS}: send less at "
                "a time",
                param="input",
            )
        return items


class ModerationResult(BaseModel):
    """What is said of one text."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class Moderation(BaseModel):
    """The answer to a ModerationBody, in the order of its input."""

    id: str
    model: str = Field(description="Name of the policy that was asked.")
    results: list[ModerationResult]


def _part_text(index: int, part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"'input[{index}]' is {shorten(part)}; it must be a text, or with others of its kind "
            '{"type": "text", "text": "..."}',
            param=f"input[{index}]",
        )
    return text
