"""Ids are tiktoken's own, one by one, or a file is refused with one line."""

import base64
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from support.vocabularies import (
    added_tokens,
    seeded_texts,
    tiktoken_file,
    tiktoken_ranks,
    write_folder,
)
from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import Split

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.text import tokenizer_text

# As the models' own code has them.
_CASED = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}HAN]*[\p{Ll}\p{Lm}\p{Lo}\p{M}HAN]+"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}HAN]+[\p{Ll}\p{Lm}\p{Lo}\p{M}HAN]*"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\nMORE]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
KIMI = r"[\p{Han}]+|" + _CASED.replace("HAN", r"&&[^\p{Han}]").replace("MORE", "")
O200K = _CASED.replace("HAN", "").replace("MORE", "/")
LLAMA_3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"""
    r"""[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN = LLAMA_3.replace("{1,3}", "")
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
SIZE = 1500


def code(module: str) -> dict[str, Any]:
    return {"auto_map": {"AutoTokenizer": [f"{module}.Tokenizer", None]}}


CASES = {
    "kimi": (
        ("tiktoken.model", "kimi_k2", code("tokenization_kimi"), KIMI),
        {"<|im_end|>": 1504, "<|reserved_token_1501|>": 1501, "<|reserved_token_1755|>": 1755},
    ),
    "moonlight": (
        ("tiktoken.model", "deepseek_v3", code("tokenization_moonshot"), KIMI),
        {"<|im_end|>": 1504, "<|reserved_token_1757|>": 1757},
    ),
    "qwen": (
        ("qwen.tiktoken", "qwen", code("tokenization_qwen"), QWEN),
        {"<|endoftext|>": 1500, "<|im_start|>": 1501, "<|extra_204|>": 1707},
    ),
    "llama 3": (
        ("tokenizer.model", "llama", {}, LLAMA_3),
        {"<|begin_of_text|>": 1503, "<|im_end|>": 1504},
    ),
    "cl100k": (
        ("cl100k_base.tiktoken", "", {}, CL100K),
        {"<|endoftext|>": 100257, "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276},
    ),
    "o200k": (("o200k_base.tiktoken", "", {}, O200K), {"<|endofprompt|>": 200018}),
}


@pytest.mark.parametrize("name", CASES)
def test_ids(name: str, tmp_path: Path) -> None:
    (file, model_type, config, pattern), special = CASES[name]
    named = added_tokens(begin_of_text=1503) if name == "llama 3" else {}
    if name != "qwen":
        named |= added_tokens(im_end=1504)
    write_folder(tmp_path, file, tiktoken_file(), model_type, added_tokens_decoder=named, **config)
    found = Tokenizer.from_str(tokenizer_text(tmp_path))
    added = {token.content: i for i, token in found.get_added_tokens_decoder().items()}
    assert special.items() <= added.items()
    original = tiktoken.Encoding(
        name, pat_str=pattern, mergeable_ranks=tiktoken_ranks(), special_tokens=added
    )
    used = set()
    for text in seeded_texts(500, list(special)):
        # The library's: each Python knows the marks of another version of Unicode.
        read = NFC().normalize_str(text) if name == "qwen" else text
        ids = found.encode(text, add_special_tokens=False).ids
        assert ids == original.encode(read, allowed_special="all"), text
        assert found.decode(ids, skip_special_tokens=False) == original.decode(ids)
        used.update(ids)
    assert len(used) > 1000
    bos = [1503] if name == "llama 3" else []
    assert found.encode("Hi").ids == [*bos, *original.encode("Hi")]


@pytest.mark.parametrize(
    "characters",
    [
        r"\s",
        r"\p{N}",
        r"\p{Han}",
        r"[\p{L}&&[^\p{Han}]]",
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    ],
)
def test_both_libraries_mean_the_same_characters(characters: str) -> None:
    """Of all there are: tiktoken's expressions are Rust's, those of tokenizers are Oniguruma's."""
    every = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x110000)]))
    plain = {bytes([byte]): byte for byte in range(256)}
    original = tiktoken.Encoding("x", pat_str=characters, mergeable_ranks=plain, special_tokens={})
    split = Split(Regex(characters), behavior="removed", invert=True)
    found = "".join(piece for piece, _ in split.pre_tokenize_str(every))
    assert found == original.decode(original.encode_ordinary(every))


def test_cuts_differ_where_the_names_do(tmp_path: Path) -> None:
    """Else the test above would pass with any of them."""
    cuts = {}
    texts = ("tout \u4f60hello \u4e16", "x/\n/y ", "a \n ", "12345", "aB")
    for name, ((file, model_type, config, _), _) in CASES.items():
        named = {"added_tokens_decoder": added_tokens(begin_of_text=1799), **config}
        write_folder(tmp_path / name, file, tiktoken_file(), model_type, **named)
        found = Tokenizer.from_str(tokenizer_text(tmp_path / name)).pre_tokenizer
        assert found is not None
        cuts[name] = tuple(
            tuple(span for _, span in found.pre_tokenize_str(text)) for text in texts
        )
    assert len(set(cuts.values())) == len(cuts) - 1  # Kimi and Moonlight cut alike


@pytest.mark.parametrize(
    ("name", "data", "config", "message"),
    [
        ("tiktoken.model", b"", {}, "tiktoken.model does not say how texts are cut"),
        (
            "tiktoken.model",
            b"",
            code("tokenization_odd"),
            "the code in auto_map 'tokenization_odd'",
        ),
        ("tokenizer.model", b"", {}, r"Llama 3 where added_tokens_decoder has <\|beg"),
        ("qwen.tiktoken", b"nonsense\n", {}, "line 1501: it must be base64, a space and a n"),
        ("qwen.tiktoken", b"abc 9\n", {}, "line 1501: .*padding"),
        (
            "qwen.tiktoken",
            base64.b64encode(b"q" * 4097) + b" 1500\n",
            {},
            "line 1501: its token has 4097 bytes",
        ),
        ("qwen.tiktoken", b"YQ== 1500\n", {}, "line 1501: its token was there before"),
        (
            "qwen.tiktoken",
            base64.b64encode(b"qqqq") + b" 1600\n",
            {},
            "its ranks must be all numbers below 1501",
        ),
        (
            "qwen.tiktoken",
            b"",
            {"added_tokens_decoder": added_tokens(x=7)},
            "token 7, .* is one of qwen.tiktoken's",
        ),
        (
            "qwen.tiktoken",
            b"",
            {"added_tokens_decoder": added_tokens(x=1800, endoftext=1801)},
            "token 1801, .*there twice",
        ),
    ],
)
def test_what_is_wrong_is_named(
    name: str, data: bytes, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, name, tiktoken_file() + data, "llama", **config)
    with pytest.raises(ModelFolderError, match=message):
        tokenizer_text(tmp_path)


def test_every_byte_must_be_a_token(tmp_path: Path) -> None:
    write_folder(tmp_path, "qwen.tiktoken", b"YQ== 0\nYg== 1\n", "qwen")
    with pytest.raises(ModelFolderError, match="byte 0 is no token, as every byte must be"):
        tokenizer_text(tmp_path)
