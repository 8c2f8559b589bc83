"""What all request bodies have in common, and types that only the OpenAPI document checks."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from pagoda_gateway.openai.schemas.checks import (
    INT64_MAX,
    INT64_MIN,
    MAX_METADATA,
    MAX_METADATA_KEY_CHARS,
    MAX_METADATA_VALUE_CHARS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    check_bad_words,
    check_dry_sequence_breakers,
    check_early_stopping,
    check_logit_bias,
    check_metadata,
    check_seed,
    check_stop,
    check_truncation,
    checked_variables,
    refuse,
    whole_numbers,
)


def _same_if(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return a validator that returns a value as it is, unless `check` raises."""

    def checked(value: Any) -> Any:
        check(value)
        return value

    return checked


def _refused(hint: str = "") -> AfterValidator:
    """Return a validator that refuses what asks for something; `hint`: what to use."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        refuse(info.field_name or "", value, hint=hint)
        return value

    return AfterValidator(checked)


_TEXT = {"type": "string"}
_TOKENS = {"type": "array", "items": {"type": "integer"}}

# Checked by hand, so that errors can say more than pydantic's about each alternative.
_STOP = _TEXT | {"minLength": 1, "maxLength": MAX_STOP_STRING_CHARS}
Stops = Annotated[
    Any,
    AfterValidator(_same_if(check_stop)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "null"},
                _STOP,
                {"type": "array", "items": _STOP, "maxItems": MAX_STOP_STRINGS},
            ]
        }
    ),
]
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
NOTHING = WithJsonSchema({"enum": [None, False, "", []]})
# A field that is refused unless its value asks for nothing.
Refused = Annotated[Any, _refused(), NOTHING]
RefusedFunctions = Annotated[Any, _refused("; use 'tools' and 'tool_choice'"), NOTHING]
Modalities = Annotated[Any, WithJsonSchema({"enum": [None, [], ["text"]]})]
EarlyStopping = Annotated[
    Any,
    AfterValidator(_same_if(check_early_stopping)),
    WithJsonSchema({"enum": [None, False, True, "never"]}),
]
ToolChoice = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}),
]
ResponseFormat = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema"]},
                "json_schema": {
                    "type": "object",
                    "properties": {"name": _TEXT, "schema": {"type": "object"}},
                    "required": ["schema"],
                },
            },
            "required": ["type"],
        }
    ),
]
MAX_MESSAGES = 32_768
MAX_TOOLS = 1024
MAX_PRIORITY = 1000
Item = TypeVar("Item")


class _FirstError(FailFast):
    """Check up to the first item that is wrong: an error for each of a million takes minutes."""

    __hash__ = object.__hash__  # pydantic's own has none, and cannot be part of a union


Items = Annotated[list[Item], _FirstError()]
Tools = Annotated[list[dict[str, Any]], _FirstError(), Field(max_length=MAX_TOOLS)]
Metadata = Annotated[
    dict[str, Any],
    AfterValidator(_same_if(check_metadata)),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_METADATA,
            "propertyNames": {"maxLength": MAX_METADATA_KEY_CHARS},
            "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE_CHARS},
        }
    ),
]
TemplateVariables = Annotated[dict[str, Any], AfterValidator(checked_variables)]
# Lower runs earlier; 0 where none is given.
Priority = Annotated[int | None, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
LogitBias = Annotated[
    dict[str, Annotated[Any, WithJsonSchema({"type": "number", "minimum": -100, "maximum": 100})]],
    AfterValidator(_same_if(check_logit_bias)),
]
Seed = Annotated[
    int | None, Field(ge=INT64_MIN, le=INT64_MAX), BeforeValidator(_same_if(check_seed))
]
BadWords = Annotated[Items[str], AfterValidator(_same_if(check_bad_words))]
SequenceBreakers = Annotated[Items[str], AfterValidator(_same_if(check_dry_sequence_breakers))]
PromptTruncation = Annotated[int | None, Field(ge=-1), AfterValidator(_same_if(check_truncation))]


class RequestModel(BaseModel):
    """A part of a body: fields that nobody here knows are ignored, as new SDKs send them."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def check_together(cls, field: str, items: list[Any]) -> None:
        """Check what items of a list are beside each other, where some are wrong by themselves.

        Raises:
            InvalidRequestError: names each that is wrong.
        """


class RequestBody(RequestModel):
    """A whole body. JSON knows one kind of number, so 2.0 is an integer."""

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, value: dict[str, Any]) -> dict[str, Any]:
        known = cls.__pydantic_fields__  # `model_fields` asks who asks, each time
        return {name: whole_numbers(item) for name, item in value.items() if name in known}
