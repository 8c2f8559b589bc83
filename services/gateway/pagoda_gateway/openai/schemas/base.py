"""What all request bodies have in common."""

from pydantic import BaseModel, ConfigDict


class RequestModel(BaseModel):
    """A body: fields that nobody here knows are ignored, as new SDKs send them."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)
