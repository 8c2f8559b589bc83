"""Vocabularies as models have them without a tokenizer.json, and texts that try them.

sentencepiece models and files of tiktoken's, both trained on this repository's own prose.
"""

import base64
import functools
import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from support.seeds import runs, seed_of_tests

ROOT = Path(__file__).parents[2]
PROSE = (ROOT / "README.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text()
RARE = "\u4f60\u597d\u4e16\u754c \u3053\u3093 caf\u00e9 na\u00efve <0x12> ABCDEF 0123456789 '\u2581"
_POOLS = (
    "abc def  ghi\n\t",
    "\u4f60\u597d\u4e16\u754c\u3053\u3093\ud55c\uad6d\u3007",
    "\U0001f600\U0001f468\u200d\U0001f469\u26a0\ufe0f",
    "e\u0301\u00e9\ufb01\u2460\uff21\u00bd\u0130\u00a0\u2003\u200b\ufeff\u0085\u2028\u017f",
    "\u0928\u092e\u0938\u094d\u0924\u0947\u0e2a\u0e27\u0e31\u05e9",
    "<>[]{}()=+-*/_\u2581'",
    "   \n\n\t\r",
    "'s'T'll 123 4567",
)
_SPELT = ("<0x41>", "<0x0A>", "<unknown>", "  hello", "def f(x):\n    return x**2  # ok\n\n")


def seeded_texts(count: int, symbols: Sequence[str] = ()) -> Iterator[str]:
    """Yield prose, code, runs of spaces, emoji, random Unicode and `symbols` in any order.

    So many of them, or more where the environment asks for more runs.
    """
    chance = random.Random(seed_of_tests())
    for _ in runs(count):
        parts = []
        for _ in range(chance.randrange(12)):
            kind = chance.randrange(7)
            if kind == 0:
                pools = chance.choices(_POOLS, k=chance.randrange(1, 8))
                parts.append("".join(chance.choice(pool) for pool in pools))
            elif kind == 1:
                parts.append(" " * chance.randrange(1, 40))
            elif kind == 2:
                codes = [chance.randrange(0x20, 0x3000) for _ in range(3)]
                parts.append("".join(map(chr, [*codes, chance.randrange(0x10000, 0x11000)])))
            elif kind == 3 and symbols:
                parts.append(chance.choice(symbols))
            elif kind == 4:
                parts.append(chance.choice(_SPELT))
            else:
                begin = chance.randrange(len(PROSE))
                parts.append(PROSE[begin : begin + chance.randrange(60)])
        yield "".join(parts)


@functools.cache
def sentencepiece_model(kind: str, **options: Any) -> bytes:
    """Train a model of 900 pieces, `bpe` or `unigram`; `options` are the trainer's."""
    written = io.BytesIO()
    values = {
        "vocab_size": 900,
        "character_coverage": 1.0,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "minloglevel": 3,
        **options,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*PROSE.split("\n"), *[RARE] * 3]),
        model_writer=written,
        model_type=kind,
        **values,
    )
    return written.getvalue()


@functools.cache
def tiktoken_ranks() -> dict[bytes, int]:
    """Return 1500 tokens by rank: bytes, and what often stands together."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([PROSE, RARE * 20], trainer)
    chars = _bytes_by_character()
    return {bytes(chars[char] for char in token): i for token, i in tokenizer.get_vocab().items()}


def tiktoken_file() -> bytes:
    """Return `tiktoken_ranks` as a file."""
    ranks = sorted(tiktoken_ranks().items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks)


def write_folder(
    folder: Path, name: str, data: bytes, model_type: str = "llama", **config: Any
) -> Path:
    """Write a model's text files, with `data` for its vocabulary; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


def added_tokens(**ids: int) -> dict[str, Any]:
    """Return added_tokens_decoder with special tokens; `<|name|>` by id."""
    return {str(i): {"content": f"<|{name}|>", "special": True} for name, i in ids.items()}


def _bytes_by_character() -> dict[str, int]:
    """Return GPT-2's table, as its authors print it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(rest)
    }
