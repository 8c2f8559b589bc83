"""Answers of the Responses API, for the OpenAPI document alone: serialisers write plain dicts."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from pagoda_gateway.openai.schemas.receipts import AnswerReceipt
from pagoda_gateway.openai.schemas.responses import CachedDetails, TokenLogprob
from pagoda_gateway.responses.tools import OfferedTool

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_LOGPROBS = (
    "Of an output_text, if `include` or `top_logprobs` asks for them: an entry for each of its "
    "tokens."
)


class OutputPart(BaseModel):
    """Text of a message or of reasoning."""

    type: Literal["output_text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[TokenLogprob] | None = Field(None, description=_LOGPROBS)


class OutputItem(BaseModel):
    """message and reasoning have `content` (or a `summary`), the others have a call's fields."""

    type: Literal["message", "function_call", "custom_tool_call", "reasoning"]
    id: str
    status: ItemStatus
    role: Literal["assistant"] | None = None
    content: list[OutputPart] | None = None
    summary: list[OutputPart] | None = Field(
        None, description="All of the reasoning, if `reasoning.summary` asks for one: no `content`."
    )
    encrypted_content: str | None = Field(
        None, description="A copy of reasoning, if `include` asks for it: send it back as it is."
    )
    call_id: str | None = None
    namespace: str | None = Field(None, description="Of the function, if it has one.")
    name: str | None = None
    arguments: str | None = Field(None, description="Of a function_call.")
    input: str | None = Field(None, description="Of a custom_tool_call.")


class ReasoningDetails(BaseModel):
    """What reasoning took."""

    reasoning_tokens: int


class InputDetails(CachedDetails):
    """Where input tokens came from."""

    cache_write_tokens: Literal[0] = Field(description="None is charged for.")


class InputTokenCount(BaseModel):
    """What `/v1/responses/input_tokens` counts."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseUsage(BaseModel):
    """Tokens used."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why a response that had begun, or runs in the background, has failed."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class IncompleteDetails(BaseModel):
    """Why a response is not all that the model would say."""

    reason: Literal["max_output_tokens", "content_filter"]


class UsedReasoning(BaseModel):
    """What was asked of reasoning."""

    effort: str | None
    summary: str | None = Field(description="Where there is one, it is all of the reasoning.")


class ConversationReference(BaseModel):
    """The conversation that a response went on with."""

    id: str


class ResponseAnswer(BaseModel):
    """The answer to a ResponsesBody; fields of the body come back in it."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool | None = Field(description="null where only the account tells of it.")
    conversation: ConversationReference | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: UsedReasoning
    safety_identifier: str | None
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[OfferedTool]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class ResponseEvent(BaseModel):
    """One event of a streamed ResponseAnswer; its name is its `type`."""

    type: Literal[
        "response.created", "response.queued", "response.in_progress", "response.completed",
        "response.incomplete", "response.failed",
        "response.output_item.added", "response.output_item.done",
        "response.content_part.added", "response.content_part.done",
        "response.output_text.delta", "response.output_text.done",
        "response.reasoning_text.delta", "response.reasoning_text.done",
        "response.reasoning_summary_part.added", "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
    ]  # fmt: skip
    sequence_number: int
    response: ResponseAnswer | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item_id: str | None = None
    item: OutputItem | None = None
    part: OutputPart | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[TokenLogprob] | None = Field(None, description=_LOGPROBS)
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    receipt: AnswerReceipt | None = Field(
        None, description="In the last event, with stream_options.include_receipt."
    )


class InputPart(BaseModel):
    """Text of an item; a refusal has `refusal`."""

    type: Literal["input_text", "output_text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(BaseModel):
    """What a response answers, or a conversation has, each kind with its fields."""

    type: Literal[
        "message", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "reasoning",
    ]  # fmt: skip
    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = Field(None, description="Of reasoning that came with one.")
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None


class InputItemList(BaseModel):
    """Some of the items that a response answers, or of a conversation."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(BaseModel):
    """What is left of a response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ConversationAnswer(BaseModel):
    """Items that responses go on with and add to."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(BaseModel):
    """What is left of a conversation."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
