"""Answers about models; only the OpenAPI document uses them."""

from typing import Literal

from pydantic import BaseModel


class ModelCard(BaseModel):
    """One model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["pagoda"]
    max_model_len: int


class ModelList(BaseModel):
    """The models that a worker has announced."""

    object: Literal["list"]
    data: list[ModelCard]
