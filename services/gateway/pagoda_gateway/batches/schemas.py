"""Bodies and answers of /v1/files and /v1/batches. Answers are for the OpenAPI document alone."""

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.base import RequestBody, RequestModel

MIN_KEEP_SECONDS, MAX_KEEP_SECONDS = 3600, 2_592_000
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
    "cancelled",
]  # fmt: skip
MESSAGES = "/v1/messages"  # what Anthropic's batches are of, and OpenAI's are not
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]


class ExpiresAfter(RequestModel):
    """When a file expires."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_KEEP_SECONDS, le=MAX_KEEP_SECONDS)


class FileForm(RequestModel):
    """The fields of an upload beside the file itself."""

    purpose: str
    expires_after: ExpiresAfter | None = None

    @field_validator("purpose")
    @classmethod
    def _only_batches(cls, purpose: str) -> str:
        if purpose != "batch":
            raise InvalidRequestError(
                f"'purpose' is {shorten(purpose)}; this server keeps files for 'batch' alone",
                param="purpose",
            )
        return purpose


class BatchBody(RequestBody):
    """What a batch is to run."""

    input_file_id: str = Field(max_length=64)
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None

    @field_validator("metadata")
    @classmethod
    def _few(cls, metadata: dict[str, str] | None) -> dict[str, str] | None:
        metadata = metadata or None
        if metadata and len(metadata) > MAX_METADATA:
            raise InvalidRequestError(
                f"'metadata' has {len(metadata)} keys; the limit is {MAX_METADATA}",
                param="metadata",
            )
        for key, value in (metadata or {}).items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                raise InvalidRequestError(
                    f"'metadata' has key {shorten(key, 80)} of {len(key)} characters with a value "
                    f"of {len(value)}; the limits are {MAX_METADATA_KEY} and {MAX_METADATA_VALUE}",
                    param="metadata",
                )
        return metadata


class FileObject(BaseModel):
    """One file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(BaseModel):
    """Some of the tenant's files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    """It is gone."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class LineError(BaseModel):
    """What is wrong with one line of an input file, or with the file."""

    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(BaseModel):
    """Why a batch did not begin."""

    object: Literal["list"]
    data: list[LineError]


class RequestCounts(BaseModel):
    """Lines: all, and those that have their answer."""

    total: int
    completed: int
    failed: int


class CachedDetails(BaseModel):
    """Where input tokens came from."""

    cached_tokens: int


class ReasoningDetails(BaseModel):
    """What output tokens are."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Tokens of the lines that have completed."""

    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails
    total_tokens: int


class BatchObject(BaseModel):
    """One batch."""

    id: str
    object: Literal["batch"]
    endpoint: Endpoint
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, Any] | None


class BatchList(BaseModel):
    """Some of the tenant's batches, the newest first."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
