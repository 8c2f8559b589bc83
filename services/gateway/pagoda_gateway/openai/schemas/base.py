"""What all request bodies have in common, and types that only the OpenAPI document checks."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema

_TEXT = {"type": "string"}
_TOKENS = {"type": "array", "items": {"type": "integer"}}

# Checked by hand, so that errors can say more than pydantic's about each alternative.
Texts = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]})]
Prompts = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [_TEXT, _TOKENS, {"type": "array", "items": {"anyOf": [_TEXT, _TOKENS]}}]}
    ),
]
Content = Annotated[
    Any,
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]}),
]
ToolChoice = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}),
]
Bias = Annotated[Any, WithJsonSchema({"type": "number", "minimum": -100, "maximum": 100})]


class RequestModel(BaseModel):
    """A body: fields that nobody here knows are ignored, as new SDKs send them."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)
