"""Answers of the administration that are about money. Micros are millionths of prices' unit."""

from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import RowMapping

from pagoda_gateway.openai.schemas.receipts import Receipt

_RATES = (
    "input_micros", "cached_device_micros", "cached_cpu_micros", "cached_nvme_micros",
    "output_micros", "batch_discount_percent",
)  # fmt: skip


class PriceObject(BaseModel):
    """What a model costs from a moment on, until its next price; micros for a million tokens."""

    id: str
    object: Literal["price"] = "price"
    model: str
    valid_from: int
    input_micros: int
    cached_device_micros: int
    cached_cpu_micros: int
    cached_nvme_micros: int
    output_micros: int
    batch_discount_percent: int
    created_at: int
    withdrawn_at: int | None


class PriceList(BaseModel):
    """Some prices, by id."""

    object: Literal["list"] = "list"
    data: list[PriceObject]
    has_more: bool


class Balance(BaseModel):
    """What a tenant has used; its id is the tenant's."""

    id: str
    object: Literal["balance"] = "balance"
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_micros: int


class BalanceList(BaseModel):
    """Some balances, by tenant."""

    object: Literal["list"] = "list"
    data: list[Balance]
    has_more: bool


class ReceiptList(BaseModel):
    """Some receipts of a tenant, by when they were opened; `after` is a request_id."""

    object: Literal["list"] = "list"
    data: list[Receipt]
    has_more: bool


class Chain(BaseModel):
    """A tenant's receipts; those up to `cut_number` are forgotten. Its id is the tenant's."""

    id: str
    object: Literal["chain"] = "chain"
    last_number: int
    last_hash: str
    cut_number: int


class ChainList(BaseModel):
    """Some chains, by tenant."""

    object: Literal["list"] = "list"
    data: list[Chain]
    has_more: bool


class ChainCheckAnswer(BaseModel):
    """What a check of some of a tenant's receipts has found."""

    object: Literal["chain.check"] = "chain.check"
    tenant: str
    checked: int
    cost_micros: int
    last_number: int
    last_hash: str
    is_end: bool
    break_: str | None = Field(alias="break", description="The first thing that is wrong.")


def price_answer(row: RowMapping) -> dict[str, Any]:
    """Return a row of `PRICES` as a PriceObject."""
    withdrawn = row["withdrawn_unix_seconds"]
    return PriceObject(
        id=row["price_id"],
        model=row["model"],
        valid_from=int(row["valid_from_unix_seconds"]),
        created_at=int(row["created_unix_seconds"]),
        withdrawn_at=None if withdrawn is None else int(withdrawn),
        **{name: row[name] for name in _RATES},
    ).model_dump()


def chain_answer(row: RowMapping) -> dict[str, Any]:
    """Return a row of `RECEIPT_CHAINS` as a Chain."""
    return Chain(
        id=row["tenant"],
        last_number=row["last_number"],
        last_hash=row["last_hash"],
        cut_number=row["cut_number"],
    ).model_dump()


def balance_answer(row: RowMapping) -> dict[str, Any]:
    """Return a tenant's sums as a Balance."""
    values = {name: value for name, value in row.items() if name != "tenant"}
    return Balance(id=row["tenant"], **values).model_dump()
