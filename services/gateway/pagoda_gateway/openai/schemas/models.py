"""Answers about models; only the OpenAPI document uses them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field


class KvCache(BaseModel):
    """What the KV of a sequence takes in a worker's memory.

    Of its latest `window` tokens it holds `bytes_per_token` each (null: of all), of earlier ones
    `bytes_per_token_behind_window`; in whole blocks of `block_size` tokens and `block_bytes`.
    """

    dtype: str
    block_size: int
    block_bytes: int
    bytes_per_token: int
    window: int | None
    bytes_per_token_behind_window: int


class ModelCard(BaseModel):
    """One model, or an alias of one: then `root` is the model's own name.

    Of a LoRA adapter `parent` is the model that it is added to. `quantization` is the format of the
    weights: ``none``, ``int8`` or ``int4`` made as they were read, or the checkpoint's own.
    """

    id: str
    object: Literal["model"]
    type: Literal["model"] = Field(description="Anthropic's, as `display_name`, `created_at`.")
    display_name: str
    created: int
    created_at: datetime
    owned_by: Literal["pagoda"]
    root: str
    parent: str | None
    max_model_len: int
    max_input_tokens: int = Field(description="Anthropic's, as `max_tokens`: both max_model_len.")
    max_tokens: int
    lifecycle: Literal["active"] = Field(description="Anthropic's: it is served.")
    quantization: str
    kv_cache: KvCache


class ModelList(BaseModel):
    """The models that workers have announced, and their aliases."""

    object: Literal["list"]
    data: list[ModelCard]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False]
