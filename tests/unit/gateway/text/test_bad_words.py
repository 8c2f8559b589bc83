"""Words as tokens: at the beginning of a text, and after a space where that makes other tokens."""

import json
from pathlib import Path

from support.tiny_tokenizer import write_model_folder

from pagoda_gateway.text.bad_words import bad_word_tokens
from pagoda_gateway.text.tokenizer import ModelTokenizer


def test_a_space_that_is_a_token_of_its_own_adds_nothing(tokenizer: ModelTokenizer) -> None:
    assert bad_word_tokens(tokenizer, ["ab", " c"]) == [[69, 70], [71]]


def test_a_space_that_joins_the_first_token_makes_another_word(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "tiny")
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    vocab = document["model"]["vocab"]
    space = "\u0120"
    joined = vocab.setdefault(space + "a", len(vocab) + 20)
    document["model"]["merges"].append([space, "a"])
    path.write_text(json.dumps(document))
    tokenizer = ModelTokenizer.load(folder)
    assert bad_word_tokens(tokenizer, ["ab", "b"]) == [[69, 70], [70], [joined, 70]]
