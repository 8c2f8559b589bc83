"""Answers of generation requests, for the OpenAPI document alone: serialisers write plain dicts."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pagoda_gateway.openai.schemas.receipts import AnswerReceipt

RECEIPT = "In the last chunk, with stream_options.include_receipt."
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "repetition"]


class TopLogprob(BaseModel):
    """One token that could have come here."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token that came, and the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for each token."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(BaseModel):
    """One entry for each token, in each of the lists; with echo the first has no logprobs."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    """What the model thought of one token at one place of the prompt."""

    logprob: float
    rank: int = Field(description="Among all tokens; 1 = the likeliest.")
    decoded_token: str


PromptLogprobs = Annotated[
    list[dict[str, PromptLogprob] | None] | None,
    Field(description="With prompt_logprobs: for each prompt token, by token id; null the first."),
]


class CachedDetails(BaseModel):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """What completion tokens were."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens used, each prompt counted once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedDetails
    completion_tokens_details: CompletionDetails | None = Field(
        None, description="Of a model that reasons before it answers."
    )


class _Choice(BaseModel):
    index: int
    finish_reason: FinishReason | None
    stop_reason: str | int | None = Field(None, description="The stop string or token that ended.")
    matched_stop: str | int | None = None
    token_ids: list[int] | None = Field(None, description="With return_token_ids.")


class CalledFunction(BaseModel):
    """Which function, and its arguments: JSON text."""

    name: str
    arguments: str


class CalledTool(BaseModel):
    """Which tool of free text, and the text."""

    name: str
    input: str


class ToolCall(BaseModel):
    """A call that the model asks for, of a `function` or of a `custom` tool."""

    id: str
    type: Literal["function", "custom"]
    function: CalledFunction | None = None
    custom: CalledTool | None = None


class FunctionDelta(BaseModel):
    """The name comes with the first piece of a call, the arguments with all of them."""

    name: str | None = None
    arguments: str


class ToolDelta(BaseModel):
    """The name comes with the first piece of a call, the text with all of them."""

    name: str | None = None
    input: str


class ToolCallDelta(BaseModel):
    """A piece of one call; the first has its id."""

    index: int
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionDelta | None = None
    custom: ToolDelta | None = None


class ChatMessage(BaseModel):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None = Field(description="null beside calls alone.")
    reasoning_content: str | None = Field(None, description="What it thought before.")
    tool_calls: list[ToolCall] | None = None
    refusal: None


class ChatDelta(BaseModel):
    """What the model said since the last chunk; the first has the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(_Choice):
    """One answer."""

    message: ChatMessage
    logprobs: ChatLogprobs | None


class ChatChunkChoice(_Choice):
    """A piece of one answer."""

    delta: ChatDelta
    logprobs: ChatLogprobs | None


class CompletionChoice(_Choice):
    """One text, or a piece of it."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] | None = Field(None, description="With return_token_ids.")
    prompt_logprobs: PromptLogprobs = None


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Answer):
    """The answer to a ChatBody."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = Field(None, description="With return_token_ids.")
    prompt_logprobs: PromptLogprobs = None


class ChatCompletionChunk(_Answer):
    """One event of a streamed ChatCompletion."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    receipt: AnswerReceipt | None = Field(None, description=RECEIPT)
    prompt_token_ids: list[int] | None = Field(
        None, description="With return_token_ids, in the first chunk."
    )


class Completion(_Answer):
    """The answer to a CompletionBody."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(_Answer):
    """One event of a streamed Completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None
    receipt: AnswerReceipt | None = Field(None, description=RECEIPT)


class ErrorDetails(BaseModel):
    """What is wrong, with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error, whatever the route."""

    error: ErrorDetails
