"""A draft model is refused unless its tokens are the model's."""

import json
from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import ModelFolderError, SettingsError
from pagoda_worker.draft_model import find_draft

DEMO_DRAFT = DEMO_MODEL.parent / "draft"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A model and a draft of the same tokens."""
    return make_tiny_checkpoint(tmp_path / "model"), make_tiny_checkpoint(tmp_path / "draft")


def change_tokenizer(folder: Path, token: str, token_id: int) -> None:
    path = folder / "tokenizer.json"
    parsed = json.loads(path.read_text())
    parsed["model"]["vocab"][token] = token_id
    path.write_text(json.dumps(parsed))


def test_none_is_named(folders: tuple[Path, Path]) -> None:
    assert find_draft(CommonSettings(), folders[0]) is None


def test_the_same_tokens_are_taken(folders: tuple[Path, Path]) -> None:
    model, draft = folders
    assert find_draft(CommonSettings(draft_model=str(draft)), model) == draft


def test_the_demo_model_has_a_draft() -> None:
    assert find_draft(CommonSettings(draft_model=str(DEMO_DRAFT)), DEMO_MODEL) == DEMO_DRAFT


@pytest.mark.parametrize(("token", "theirs", "ours"), [("zz", 999, "none"), ("a", 998, r"\d+")])
def test_another_token_is_named(
    folders: tuple[Path, Path], token: str, theirs: int, ours: str
) -> None:
    model, draft = folders
    change_tokenizer(draft, token, theirs)
    message = (
        rf"PAGODA_DRAFT_MODEL='{draft}' has another tokenizer than {model}: "
        rf"'{token}' is token {theirs} there and {ours} here; a draft needs the same tokens"
    )
    with pytest.raises(ModelFolderError, match=message):
        find_draft(CommonSettings(draft_model=str(draft)), model)


def test_without_a_tokenizer_nothing_is_known(folders: tuple[Path, Path]) -> None:
    model, draft = folders
    (draft / "tokenizer.json").unlink()
    with pytest.raises(ModelFolderError, match=f"PAGODA_DRAFT_MODEL: the tokens of {draft}"):
        find_draft(CommonSettings(draft_model=str(draft)), model)


def test_a_folder_that_is_not_there_is_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ModelFolderError, match=r"PAGODA_DRAFT_MODEL='/nowhere': there is no such"):
        find_draft(CommonSettings(draft_model="/nowhere"), folders[0])


def test_where_speculation_is_off_a_draft_is_a_mistake(folders: tuple[Path, Path]) -> None:
    model, draft = folders
    with pytest.raises(SettingsError, match="PAGODA_SPECULATION is off: unset one of them"):
        find_draft(CommonSettings(draft_model=str(draft), speculation="off"), model)
