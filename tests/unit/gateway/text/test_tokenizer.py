"""Token ids as the reference implementation makes them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_tokenizer import (
    BOS_ID,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    write_model_folder,
)
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.errors import ModelFolderError

TEXTS = ["hello world", "", " x", "<|end|> inside", "日本 \U0001f600"]


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_bos_as_the_reference_adds_it(tmp_path: Path, config: dict[str, bool], kind: str) -> None:
    made = byte_level_tokenizer() if kind == "byte-level" else sentencepiece_tokenizer()
    folder = write_model_folder(tmp_path, made, **config)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = ModelTokenizer.load(folder)
    for text in TEXTS:
        for special in (True, False):
            wanted = reference.encode(text, add_special_tokens=special)
            assert tokenizer.encode(text, add_special_tokens=special) == wanted, text


def test_bos_comes_once(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.encode("hello", add_special_tokens=True).count(BOS_ID) == 1
    assert BOS_ID not in tokenizer.encode("hello", add_special_tokens=False)


@given(st.text(max_size=30))
def test_bytes_of_tokens_spell_the_text(text: str) -> None:
    tokenizer = ModelTokenizer(byte_level_tokenizer(), {})
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()


@pytest.mark.parametrize(
    ("steps", "sent", "seen"),
    [
        ([normalizers.NFC()], "cafe\u0301 x", "caf\u00e9 x"),
        ([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")], "a b", "a b"),
        ([normalizers.Prepend("\u2581"), normalizers.NFKC()], "\uff41\u2581b", "a b"),
    ],
)
def test_the_text_that_tokens_are_made_of(
    steps: list[normalizers.Normalizer], sent: str, seen: str
) -> None:
    made = byte_level_tokenizer()
    made.normalizer = normalizers.Sequence(steps)
    normalize = ModelTokenizer(made, {}).normalize
    assert normalize is not None
    assert normalize(sent) == seen


@pytest.mark.parametrize("space", [" ", "\n", ""])
def test_large_texts_are_normalized_in_pieces(space: str) -> None:
    made = byte_level_tokenizer()
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.NFKC()])
    normalize = ModelTokenizer(made, {}).normalize
    assert normalize is not None
    assert normalize(f"\uff41bcd{space}" * 50_000) == f"abcd{space}" * 50_000


def test_without_a_normalizer_it_is_the_text(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.normalize is None
    made = byte_level_tokenizer()
    made.normalizer = normalizers.ByteLevel()  # bytes, and no text
    assert ModelTokenizer(made, {}).normalize is None


def test_token_text_shows_bytes_of_half_a_character(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("\U0001f600", add_special_tokens=False)
    assert tokenizer.token_text(ids[0]) == "bytes:\\xf0"
    assert tokenizer.token_text(tokenizer.encode("h", add_special_tokens=False)[0]) == "h"


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json"):
        ModelTokenizer.load(tmp_path)
