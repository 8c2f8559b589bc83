"""Tokens of a file's tokenizer are those of the tokenizer that the file was made of.

The originals are transformers' own classes, or its converters', with vocabularies trained here.
"""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import CohereTokenizer, GemmaTokenizer, GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.gguf import tokenizer_config, tokenizer_json

ROOT = Path(__file__).parents[4]
BOS, EOS, MARK, UNK = "<|begin|>", "<|end|>", "<tool_call>", "<unk>"
SPACE = "\u2581"
PROSE = (ROOT / "README.md").read_text()
TEXTS = [
    *PROSE.split("\n\n")[:30],
    *(ROOT / "ARCHITECTURE.md").read_text().split("\n")[:60],
    "",
    " ",
    "   three spaces, and more    at the end   ",
    "\n",
    "\n\n \n\t\r\n  x\r",
    "I'll say it's WE'RE 'em, they'Ve d'accord 'S",
    "1 22 333 4444 55555 3.1415926 1e-9 0x7f \u0663\u0664 \u2167 \u00bd",
    "caf\u00e9 cafe\u0301 na\u00efve \u1e9e \u0130\u0131 \ufb01ne",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u26a0\ufe0f!\u00a0\u2003x\u200b\ufeff",
    "def f(x):\n    return x**2  # ok\n\n\nif __name__=='__main__':\n\tf(3)",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a \u05e9\u05dc\u05d5\u05dd",
    f"{BOS}a {EOS} b{MARK}{{}}{MARK} {EOS}\n",
    "<0x41> \u2581a \u0120b \x00\x01\x7f",
]
LLAMA_3 = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default


def trained(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None = None,
    **options: Any,
) -> Tokenizer:
    """A BPE of bytes."""
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [PROSE],
        trainers.BpeTrainer(
            vocab_size=700,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (BOS, EOS)])
    tokenizer.add_tokens([AddedToken(MARK, special=False, normalized=False)])
    return tokenizer


def by_transformers(cls: Callable[..., Any]) -> Tokenizer:
    """A vocabulary of usual bytes, in a class of transformers'."""
    plain = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    model = json.loads(plain.to_str())["model"]
    tokenizer: Tokenizer = cls(
        vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]]
    )._tokenizer
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (BOS, EOS)])
    tokenizer.add_tokens([AddedToken(MARK, special=False, normalized=False)])
    return tokenizer


def llama_3() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = pre_tokenizers.Sequence([split, byte_level])
    return trained(steps, ignore_merges=True)


def starcoder() -> Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(pre_tokenizers.Sequence([digits, byte_level]))


def bloom() -> Tokenizer:
    expression = r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
    split = pre_tokenizers.Split(Regex(expression), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return trained(pre_tokenizers.Sequence([split, byte_level]))


BYTE_LEVEL: dict[str, Callable[[], Tokenizer]] = {
    "gpt-2": lambda: by_transformers(GPT2Tokenizer),
    "qwen2": lambda: by_transformers(Qwen2Tokenizer),
    "command-r": lambda: by_transformers(CohereTokenizer),
    "llama-bpe": llama_3,
    "starcoder": starcoder,
    "bloom": bloom,
}


def write(
    path: Path, tokenizer: Tokenizer, *, model: str, pre: str = "", **fields: bool | list[float]
) -> Path:
    """Write what converters write of a tokenizer, with 5 ids more that only pad the table."""
    data = json.loads(tokenizer.to_str())
    ids = dict(tokenizer.get_vocab(True))
    special = {token["id"]: token["special"] for token in data["added_tokens"]}
    size = max(ids.values()) + 1
    tokens = [f"[PAD{i}]" for i in range(size + 5)]
    kinds = [5] * len(tokens)
    for token, i in ids.items():
        tokens[i] = token
        kinds[i] = 3 if special.get(i) else 4 if i in special else 1
        if model == "llama" and token.startswith("<0x"):
            kinds[i] = 6
        if model == "llama" and token == UNK:
            kinds[i] = 2
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if model == "gpt2":
        writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    for name, token in (("bos", BOS), ("eos", EOS), ("unknown", UNK)):
        if token in ids:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", ids[token])
    for name, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        else:
            writer.add_array(f"tokenizer.ggml.{name}", [*value, *[-1e4] * 5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def by_id(tokenizer: Tokenizer) -> list[tuple[int, str]]:
    return sorted((i, token) for token, i in tokenizer.get_vocab(True).items())


def assert_same(found: Tokenizer, original: Tokenizer) -> None:
    for text in TEXTS:
        expected = original.encode(text, add_special_tokens=False).ids
        ids = found.encode(text, add_special_tokens=False).ids
        assert ids == expected, text
        for skip in (True, False):
            assert found.decode(ids, skip_special_tokens=skip) == original.decode(
                expected, skip_special_tokens=skip
            )
    assert len({i for text in TEXTS for i in found.encode(text).ids}) > 300  # not only bytes


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_bpe_of_bytes(pre: str, tmp_path: Path) -> None:
    original = BYTE_LEVEL[pre]()
    path = write(tmp_path / "m.gguf", original, model="gpt2", pre=pre)
    found = Tokenizer.from_str(tokenizer_json(path))
    assert_same(found, original)
    added = {token.content: token.special for token in found.get_added_tokens_decoder().values()}
    assert added == {
        token.content: token.special for token in original.get_added_tokens_decoder().values()
    }
    assert (added[BOS], added[EOS], added[MARK]) == (True, True, False)
    assert found.get_vocab(True) == original.get_vocab(True)  # so padding is no token


@pytest.mark.parametrize(
    ("pre", "first", "second"),
    [
        (
            "deepseek-llm",
            "Don|'|t| sum| |1|2|3|4|5|.|5| ab|_|cd|!|x|  |\n|\n| y| ",
            "\u4f60\u597d|abc| |\u3067\u3059|x|\uff0c|\u597d|\u3002| \u00e9",
        ),
        (
            "deepseek-v3",
            "Don|'t| sum| |123|45|.|5| ab|_cd|!x|  \n\n| y| ",
            "\u4f60\u597d|abc| |\u3067\u3059|x|\uff0c|\u597d|\u3002| \u00e9",
        ),
    ],
)
def test_pieces_by_several_expressions(tmp_path: Path, pre: str, first: str, second: str) -> None:
    """DeepSeek's, of which transformers has no class: by hand, from their tokenizer.json."""
    path = write(tmp_path / "m.gguf", llama_3(), model="gpt2", pre=pre)
    found = Tokenizer.from_str(tokenizer_json(path)).pre_tokenizer
    assert found is not None
    for cut in (first, second):
        text = cut.replace("|", "")
        pieces = [text[begin:end] for _, (begin, end) in found.pre_tokenize_str(text)]
        assert "|".join(pieces) == cut


def test_cuts_differ_where_the_names_do(tmp_path: Path) -> None:
    """Else the tests above would pass with any of them."""
    original = llama_3()
    ids = {}
    for pre in BYTE_LEVEL:
        path = write(tmp_path / f"{pre}.gguf", original, model="gpt2", pre=pre)
        found = Tokenizer.from_str(tokenizer_json(path))
        ids[pre] = tuple(tuple(found.encode(text, add_special_tokens=False).ids) for text in TEXTS)
    assert len(set(ids.values())) == len(ids)


def pieces(tokenizer: Tokenizer) -> tuple[dict[str, int], dict[str, float]]:
    vocab = {token: i for i, token in by_id(tokenizer)}
    return vocab, {token: -float(i) for token, i in vocab.items()}


def sentencepiece(*, has_prefix: bool) -> tuple[Tokenizer, list[float]]:
    """As transformers converts a SentencePiece model of the BPE kind; and the scores of its ids."""
    first = [UNK, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=first)
    trainee.train_from_iterator([PROSE], trainer)
    vocab, scores = pieces(trainee)
    merges = generate_merges(vocab, scores)
    if has_prefix:
        model = models.BPE(vocab, merges, unk_token=UNK, fuse_unk=True, byte_fallback=True)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace(SPACE, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        tokenizer = GemmaTokenizer(vocab=vocab, merges=merges, unk_token=UNK)._tokenizer
        vocab = {token: i for i, token in by_id(tokenizer)}
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (UNK, BOS, EOS)])
    tokenizer.add_tokens([AddedToken(MARK, special=False, normalized=False)])
    size = len(by_id(tokenizer))
    return tokenizer, [-float(i) for i in range(size)]


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece(has_prefix: bool, tmp_path: Path) -> None:
    original, scores = sentencepiece(has_prefix=has_prefix)
    path = write(
        tmp_path / "m.gguf", original, model="llama", add_space_prefix=has_prefix, scores=scores
    )
    assert_same(Tokenizer.from_str(tokenizer_json(path)), original)


def test_equal_scores_are_merged_by_id(tmp_path: Path) -> None:
    original, scores = sentencepiece(has_prefix=True)
    lost = [-1000.0] * len(scores)
    path = write(tmp_path / "m.gguf", original, model="llama", scores=lost)
    assert_same(Tokenizer.from_str(tokenizer_json(path)), original)


@pytest.mark.parametrize(
    ("model", "pre", "fields", "expected"),
    [
        ("gpt2", "gpt-2", {}, (False, False)),
        ("gpt2", "llama-bpe", {}, (True, False)),
        ("gpt2", "llama-bpe", {"add_bos_token": False}, (False, False)),
        ("gpt2", "gpt-2", {"add_bos_token": True, "add_eos_token": True}, (True, True)),
        ("llama", "", {}, (True, False)),
        ("llama", "", {"add_bos_token": False, "add_eos_token": True}, (False, True)),
    ],
)
def test_bos_and_eos(
    model: str,
    pre: str,
    fields: dict[str, Any],
    expected: tuple[bool, bool],
    tmp_path: Path,
) -> None:
    if model == "llama":
        original, scores = sentencepiece(has_prefix=True)
        fields = {**fields, "scores": scores}
    else:
        original = llama_3()
    path = write(tmp_path / "m.gguf", original, model=model, pre=pre, **fields)
    found = Tokenizer.from_str(tokenizer_json(path))
    bos, eos = [BOS] * expected[0], [EOS] * expected[1]
    template = processors.TemplateProcessing(
        single=[*bos, "$A", *eos],
        pair=[*bos, "$A", *eos, *bos, "$B", *eos],
        special_tokens=[(token, original.token_to_id(token)) for token in (BOS, EOS)],
    )
    original.post_processor = template
    for text in ("Hello", ("Hello", "there")):
        encoded = [
            tokenizer.encode(*([text] if isinstance(text, str) else text)).ids
            for tokenizer in (found, original)
        ]
        assert encoded[0] == encoded[1]
        alone = [
            tokenizer.encode(*([text] if isinstance(text, str) else text), add_special_tokens=False)
            for tokenizer in (found, original)
        ]
        assert alone[0].ids == alone[1].ids


def test_special_tokens_and_template(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", llama_3(), model="gpt2", pre="llama-bpe")
    assert tokenizer_config(path) == {"bos_token": BOS, "eos_token": EOS}


def broken(path: Path, **fields: Any) -> Path:
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "merges": ["a b"], **fields}
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens is no list of str"),
        ({"token_type": [1]}, "2 tokens and tokenizer.ggml.token_type 1"),
        ({"model": "t5"}, "tokenizer.ggml.model is 't5', must be one of gpt2, llama"),
        ({"pre": None}, "tokenizer.ggml.pre is missing, must be one of llama-bpe, .*Convert"),
        ({"pre": "new"}, "tokenizer.ggml.pre is 'new', must be one of"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
        ({"model": "llama", "scores": [1.0]}, "1 numbers, must have one for each of 2 tokens"),
        ({"bos_token_id": 2, "add_bos_token": "x"}, "add_bos_token is 'x', must be bool"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=message):
        tokenizer_json(broken(tmp_path / "m.gguf", **fields))


def test_ids_beyond_the_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="eos_token_id is 2, must be below 2"):
        tokenizer_config(broken(tmp_path / "m.gguf", eos_token_id=2))
