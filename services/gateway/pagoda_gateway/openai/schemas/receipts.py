"""Answers about a request's account (Pagoda's own); only the OpenAPI document uses them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CachedTokens(BaseModel):
    """Prompt tokens whose KV was reused, by where it lay."""

    total: int
    device: int
    cpu: int
    nvme: int


class Prefix(BaseModel):
    """Why less of the prompt was cached than should have been; see docs/howto/prefixes.md."""

    model_config = ConfigDict(populate_by_name=True)

    kind: str = Field(alias="class")
    lost_tokens: int
    lost_micros: int | None
    place: str | None
    expected_tokens: int
    first_token: int
    role: str | None
    text: str
    earlier_text: str
    advice: str


class Receipt(BaseModel):
    """What one request used; what is known only at its end is missing while it is open."""

    object: Literal["receipt"]
    request_id: str
    id: str
    status: Literal["open", "closed"]
    model: str
    endpoint: str
    service_tier: Literal["default", "batch"]
    opened: float
    closed: float | None = None
    outcome: Literal["finished", "disconnected", "failed"] | None = None
    prompt_tokens: int | None = None
    cached_tokens: CachedTokens | None = None
    output_tokens: int | None = None
    finish_reasons: list[str] | None = None
    attempts: int | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    stages_ms: dict[str, float] | None = None
    workers: list[str] | None = None
    cached_answer: bool | None = Field(
        None, description="The answer was kept of an equal request: no worker made it."
    )
    safety_findings: list[str] | None = Field(
        None, description='Rules of the policy that matched: "policy/rule action direction".'
    )
    prefix: Prefix | None = None
