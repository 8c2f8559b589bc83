"""Answers about a request's account (Pagoda's own); only the OpenAPI document uses them."""

from typing import Literal

from pydantic import BaseModel


class CachedTokens(BaseModel):
    """Prompt tokens whose KV was reused, by where it lay."""

    total: int
    device: int
    cpu: int
    nvme: int


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
    outcome: Literal["finished", "disconnected", "failed", "reconciled", "lost"] | None = None
    prompt_tokens: int | None = None
    cached_tokens: CachedTokens | None = None
    output_tokens: int | None = None
    finish_reasons: list[str] | None = None
    attempts: int | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    stages_ms: dict[str, float] | None = None
    workers: list[str] | None = None
    compute_seconds: float | None = None
