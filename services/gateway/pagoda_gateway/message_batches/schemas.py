"""Bodies and answers of Anthropic's Message Batches."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SkipValidation, WithJsonSchema

from pagoda_gateway.anthropic.answers import MessageAnswer, MessagesError
from pagoda_gateway.anthropic.schemas import MessagesBody
from pagoda_gateway.batches.validation import MAX_CUSTOM_ID_CHARS
from pagoda_gateway.openai.schemas.base import Items, RequestBody, RequestModel

_CUSTOM_ID = {"type": "string", "minLength": 1, "maxLength": MAX_CUSTOM_ID_CHARS}


class MessageBatchRequest(RequestModel):
    """One request, as it came: what is wrong with several is told at once, by other means."""

    custom_id: Annotated[Any, WithJsonSchema(_CUSTOM_ID)]
    params: SkipValidation[MessagesBody]


class MessageBatchBody(RequestBody):
    """What a batch is to run."""

    requests: Items[MessageBatchRequest] = Field(min_length=1)


class MessageBatchCounts(BaseModel):
    """Requests: those that have no result yet, and the others by their results."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(BaseModel):
    """One batch."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str = Field(description="RFC 3339, as the others.")
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None


class MessageBatchList(BaseModel):
    """Some of the tenant's batches, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(BaseModel):
    """It is gone."""

    id: str
    type: Literal["message_batch_deleted"]


class MessageBatchResult(BaseModel):
    """What became of a request."""

    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: MessageAnswer | None = Field(None, description="In succeeded.")
    error: MessagesError | None = Field(None, description="In errored.")


class MessageBatchLine(BaseModel):
    """One line of the results."""

    custom_id: str
    result: MessageBatchResult
