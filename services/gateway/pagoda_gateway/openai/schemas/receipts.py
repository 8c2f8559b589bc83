"""Receipts (Pagoda's own); only the OpenAPI document uses their schemas."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CachedTokens(BaseModel):
    """Prompt tokens whose KV was reused, by where it lay."""

    total: int
    device: int
    cpu: int
    nvme: int


class Speculation(BaseModel):
    """Tokens that were guessed and computed beside others, and those that were right."""

    proposed_tokens: int
    accepted_tokens: int


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


class CostLine(BaseModel):
    """A part of a cost. Lines sum to the total; the discount of batches is negative."""

    item: Literal[
        "input", "cached_device", "cached_cpu", "cached_nvme", "output", "batch_discount",
        "cached_answer",
    ]  # fmt: skip
    micros: int
    tokens: int | None = None
    micros_per_million: int | None = Field(None, description="Tokens, by the price.")
    percent: int | None = Field(None, description="Of a discount.")


class Cost(BaseModel):
    """What a request cost, in millionths of the unit that prices are in."""

    micros: int
    price_id: str | None
    lines: list[CostLine]
    note: Literal["no price"] | None = None


class _Receipt(BaseModel):
    request_id: str
    id: str
    model: str
    endpoint: str
    service_tier: Literal["default", "batch"]
    opened: float


class AnswerReceipt(_Receipt):
    """A receipt as it comes with the answer: what the ledger will say once it has it."""

    outcome: Literal["finished"]
    prompt_tokens: int
    cached_tokens: CachedTokens
    output_tokens: int
    attempts: int
    ttft_ms: float
    stages_ms: dict[str, float]
    cached_answer: bool
    safety_findings: list[str]
    speculation: Speculation
    cost: Cost


class Receipt(_Receipt):
    """What one request used.

    What is known only at its end is missing while it is open, and what its place in the tenant's
    chain tells (`cost`, `number`, the hashes) until it has one.
    """

    object: Literal["receipt"]
    status: Literal["open", "closed"]
    tenant: str
    api_key_id: str | None
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
    cached_answer: bool | None = Field(
        None, description="The answer was kept of an equal request: no worker made it."
    )
    safety_findings: list[str] | None = Field(
        None, description='Rules of the policy that matched: "policy/rule action direction".'
    )
    speculation: Speculation | None = None
    prefix: Prefix | None = None
    cost: Cost | None = None
    number: int | None = None
    previous_hash: str | None = None
    hash: str | None = None
    compute_seconds: float | None = None
