"""One tiny model for all engine tests; no test changes it."""

from pathlib import Path

import pytest
from support.seeds import seed_of_tests
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, load_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "llama")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, EngineConfig(dtype="float32", max_model_len=512))


@pytest.fixture
def seed() -> int:
    return seed_of_tests()
