"""A tiny tokenizer for every gateway test; a database of each kind for those that need one."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.new_ledger import make_tables, write_ledger
from support.tiny_tokenizer import write_model_folder

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import PromptMaker
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> ModelTokenizer:
    return ModelTokenizer.load(model_folder)


@pytest.fixture
def model() -> ServedModel:
    return ServedModel(
        name="tiny",
        kv_identity=bytes(16),
        block_size=16,
        max_model_len=100,
        vocab_size=267,
        embedding_size=4,
        created_unix_seconds=0,
    )


@pytest.fixture
def maker(tokenizer: ModelTokenizer, model_folder: Path) -> PromptMaker:
    return PromptMaker(tokenizer, ChatTemplate.load(model_folder, tokenizer.special_tokens))


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of a test's database."""
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, `database`'s where a test asks for both."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/home/ledger.sqlite"
    new: str = request.getfixturevalue("postgres").new_database()
    return new


@pytest.fixture
def database_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """`url`, or where a test does not ask for it, of a database that was migrated before."""
    if "url" in request.fixturenames:
        yield request.getfixturevalue("url")
    elif kind == "sqlite":
        write_ledger(path := tmp_path / "home" / "ledger.sqlite")
        yield f"sqlite:///{path}"
    else:
        with request.getfixturevalue("postgres").lent(make_tables) as lent:
            yield lent


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url) as opened:
        yield opened
