"""The server that all clients here talk to, named by the environment as `.pagoda/env` names it."""

import os
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, and what it takes and serves."""

    url: str
    api_key: str
    model: str

    @property
    def openai_url(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def server() -> Server:
    return Server(
        os.environ["OPENAI_BASE_URL"].removesuffix("/v1"),
        os.environ["OPENAI_API_KEY"],
        os.environ["PAGODA_MODEL_NAME"],
    )
