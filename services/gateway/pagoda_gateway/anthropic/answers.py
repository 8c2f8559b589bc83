"""Answers of Anthropic's API, for the OpenAPI document alone: serialisers write plain dicts."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from pagoda_gateway.openai.schemas.receipts import AnswerReceipt

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class OutputDetails(BaseModel):
    """What output tokens were."""

    thinking_tokens: int


class MessagesUsage(BaseModel):
    """Tokens used; those of the prompt are the sum of all three."""

    input_tokens: int = Field(description="Prompt tokens that were computed.")
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int = Field(description="Prompt tokens whose KV was reused.")
    output_tokens: int
    output_tokens_details: OutputDetails | None = Field(
        None, description="At the end, of a model that thinks before it answers."
    )


class MessageBlock(BaseModel):
    """text has `text`, thinking has `thinking` and `signature`, tool_use has the others."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | None = None
    thinking: str | None = None
    signature: Literal[""] | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class MessageAnswer(BaseModel):
    """The answer to a MessagesBody."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageDelta(BaseModel):
    """Of a block: more of one of its fields. Of the message: why it has ended."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessagesErrorDetails(BaseModel):
    """What is wrong."""

    type: str
    message: str


class MessagesError(BaseModel):
    """Every error of the API."""

    type: Literal["error"]
    error: MessagesErrorDetails
    request_id: str


class MessageEvent(BaseModel):
    """One event of a streamed MessageAnswer; its name is its `type`."""

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop", "ping", "error",
    ]  # fmt: skip
    message: MessageAnswer | None = None
    index: int | None = None
    content_block: MessageBlock | None = None
    delta: MessageDelta | None = None
    usage: MessagesUsage | None = None
    error: MessagesErrorDetails | None = None
    request_id: str | None = Field(None, description="In error.")
    receipt: AnswerReceipt | None = Field(
        None, description="In message_stop, with stream_options.include_receipt."
    )


class TokenCount(BaseModel):
    """The answer to a CountTokensBody."""

    input_tokens: int
