"""What a model's generation_config.json says of sampling, for requests that do not say it.

The fields are those that vLLM takes of it.
"""

import logging
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pagoda_gateway.errors import shorten
from pagoda_gateway.openai.schemas.base import RequestBody
from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.files import read_object

logger = logging.getLogger(__name__)

FILE = "generation_config.json"


class GenerationConfig(RequestBody):
    """Defaults of a model; None: it says nothing. Ranges are those of requests."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    max_new_tokens: int | None = Field(None, ge=1)

    @classmethod
    def load(cls, folder: Path) -> "GenerationConfig":
        """Read what is there; a folder without the file, or a GGUF file, says nothing.

        Raises:
            ModelFolderError: the file is unusable, or a value is out of range.
        """
        path = folder / FILE
        try:
            config = cls.model_validate(read_object(path))
        except ValidationError as error:
            first = error.errors()[0]
            raise ModelFolderError(
                f"{path}: {first['loc'][0]} is {shorten(first['input'])}: {first['msg']}. Correct "
                "it, or set PAGODA_GATEWAY_GENERATION_CONFIG=none"
            ) from error
        if said := config.model_dump(exclude_none=True):
            listed = ", ".join(f"{name} {value}" for name, value in said.items())
            logger.info("%s: where requests say nothing: %s", path, listed)
        return config

    @property
    def sampling(self) -> dict[str, Any]:
        """Return what it says of sampling, by the names that requests have for it."""
        return self.model_dump(exclude_none=True, exclude={"max_new_tokens"})
