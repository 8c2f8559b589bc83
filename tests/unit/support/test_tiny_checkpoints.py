"""The tokenizer that the tiny checkpoints carry is one that the libraries accept."""

from pathlib import Path

import pytest
from support.tiny_checkpoints import EOS_TOKEN_ID, SPECIAL_TOKENS, VOCAB_SIZE, write_byte_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_byte_tokenizer(tmp_path)
    return tmp_path


def test_text_becomes_its_bytes_and_back(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "Grüße, 世界! 🎐\n  two  spaces"
    ids = tokenizer.encode(text).ids
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == VOCAB_SIZE


def test_special_tokens_are_one_id_each(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("".join(SPECIAL_TOKENS)).ids == list(range(256, VOCAB_SIZE))
    assert tokenizer.decode([72, 105, EOS_TOKEN_ID], skip_special_tokens=True) == "Hi"


def test_chat_template_renders(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token_id == EOS_TOKEN_ID
