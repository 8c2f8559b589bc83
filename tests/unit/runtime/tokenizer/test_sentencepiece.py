"""Ids are sentencepiece's own, one by one, or a model is refused with one line."""

import itertools
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from support.vocabularies import seeded_texts, sentencepiece_model, write_folder
from tokenizers import Tokenizer
from tokenizers.normalizers import Precompiled
from transformers import AutoTokenizer

from pagoda_runtime.errors import ModelFolderError
from pagoda_runtime.tokenizer.sentencepiece_model import read_model
from pagoda_runtime.tokenizer.text import tokenizer_text

LLAMA = {"tokenizer_class": "LlamaTokenizer"}
SYMBOLS = ("<sep>", "<|x|>", "##")


def converted(folder: Path, model: bytes, **config: Any) -> Tokenizer:
    write_folder(folder, "tokenizer.model", model, **{**LLAMA, **config})
    return Tokenizer.from_str(tokenizer_text(folder))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("strips", [True, False])
@pytest.mark.parametrize("symbols", [(), SYMBOLS])
def test_bpe(prefix: bool, strips: bool, symbols: tuple[str, ...], tmp_path: Path) -> None:
    model = sentencepiece_model(
        "bpe",
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=strips,
        user_defined_symbols=",".join(symbols),
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    used = set()
    for text in seeded_texts(400, symbols):
        if text.strip(" \u2581") in symbols:
            continue  # alone it has no prefix, as in transformers
        ids = ids_of(found, text)
        assert ids == original.encode(text), text
        if not strips or "\u2581" not in text:
            assert found.decode(ids, skip_special_tokens=False) == original.decode(ids), text
        used.update(ids)
    assert len(used) > 600  # not only bytes


@pytest.mark.parametrize("prefix", [True, False])
def test_symbols_of_any_characters(prefix: bool, tmp_path: Path) -> None:
    symbols = ("~&-", "\n\n", "[x]*", "a\\.b", "\u2581\u2581\u2581", "\u00e9\u00e9", "$^|?+")
    model = sentencepiece_model("bpe", byte_fallback=True, user_defined_symbols=",".join(symbols))
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    for text in seeded_texts(400, [*symbols, "   "]):
        if text.replace(" ", "\u2581") in symbols:
            continue
        assert ids_of(found, text) == original.encode(text), text


def test_bpe_without_bytes(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe")
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    for text in seeded_texts(400):
        assert ids_of(found, text) == original.encode(text), text


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("falls_back", [True, False])
@pytest.mark.parametrize("symbols", [(), SYMBOLS])
def test_unigram(prefix: bool, falls_back: bool, symbols: tuple[str, ...], tmp_path: Path) -> None:
    """Where two ways are equally likely, the library may take the other one."""
    model = sentencepiece_model(
        "unigram",
        byte_fallback=falls_back,
        add_dummy_prefix=prefix,
        user_defined_symbols=",".join(symbols),
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    num_ties = num_texts = 0
    for text in seeded_texts(400, symbols):
        if text in symbols:
            continue
        num_texts += 1
        ids, expected = ids_of(found, text), original.encode(text)
        if ids != expected:
            num_ties += 1
            scores = [sum(map(original.get_score, way)) for way in (ids, expected)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4), text
    assert num_ties < num_texts / 8


def test_sentencepieces_control_tokens_are_tokens_in_a_text(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True, control_symbols="[INST]")
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    inst, bos = (original.piece_to_id(text) for text in ("[INST]", "<s>"))
    expected = [bos, inst, *original.encode("Hi there"), inst, *original.encode(" you")]
    assert ids_of(found, "<s>[INST]Hi there[INST] you") == expected
    assert found.decode([bos, inst, *original.encode("Hi")]) == "Hi"


@pytest.mark.parametrize("legacy", [None, True, False])
def test_a_prefix_between_special_tokens(legacy: bool | None, tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True)
    found = converted(tmp_path, model, legacy=legacy)
    first, mark, second, *_ = (found.id_to_token(i) for i in ids_of(found, "the</s>the"))
    assert (first, mark) == ("\u2581the", "</s>")
    assert second.startswith("\u2581") == (legacy is not False)


def test_without_legacy_it_is_as_transformers_converts_it(tmp_path: Path) -> None:
    config = {**LLAMA, "legacy": False, "add_bos_token": True, "add_prefix_space": True}
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    symbols = ",".join(SYMBOLS)
    model = sentencepiece_model("bpe", byte_fallback=True, user_defined_symbols=symbols)
    found = converted(tmp_path, model, **config, **special)
    original = AutoTokenizer.from_pretrained(tmp_path)
    for text in seeded_texts(400, ("<s>", "</s>", *SYMBOLS)):
        assert found.encode(text).ids == original(text).input_ids, text


@pytest.mark.parametrize(
    ("config", "around"),
    [
        ({}, ("<s>", "")),
        ({"add_bos_token": False, "add_eos_token": True}, ("", "</s>")),
        ({"add_eos_token": True, "eos_token": {"content": "<|end|>"}}, ("<s>", "<|end|>")),
    ],
)
def test_bos_and_eos(config: dict[str, Any], around: tuple[str, str], tmp_path: Path) -> None:
    added = {"900": {"content": "<|end|>", "special": True}}
    model = sentencepiece_model("bpe", byte_fallback=True)
    found = converted(tmp_path, model, added_tokens_decoder=added, **config)
    inner = ids_of(found, "Hello")
    bos, eos = ([found.token_to_id(text)] if text else [] for text in around)
    assert found.encode("Hello").ids == [*bos, *inner, *eos]


def test_older_folders_have_added_tokens_in_two_files(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True)
    folder = write_folder(tmp_path, "tokenizer.model", model, **LLAMA)
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_end|>": 900, "<pad>": 905}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    found = Tokenizer.from_str(tokenizer_text(folder))
    ids = ids_of(found, "the<|im_end|><pad>")
    assert ids[1:] == [900, 905]
    assert found.decode(ids) == "the<pad>"


def test_a_reserved_piece_may_get_a_name(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True, user_defined_symbols="[UNUSED_1]")
    reserved = sentencepiece.SentencePieceProcessor(model_proto=model).piece_to_id("[UNUSED_1]")
    added = {str(reserved): {"content": "<|im_start|>", "special": True}}
    found = converted(tmp_path, model, added_tokens_decoder=added)
    assert ids_of(found, "<|im_start|>")[-1:] == [reserved]
    assert found.token_to_id("[UNUSED_1]") is None


def test_the_unknown_piece_may_get_a_name(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe")
    found = converted(tmp_path, model, added_tokens_decoder={"0": {"content": "[UNK]"}})
    assert ids_of(found, "a\U0001f600a")[-2] == found.token_to_id("[UNK]") == 0


def test_a_character_that_is_only_in_pieces_is_its_bytes_token(tmp_path: Path) -> None:
    """Gemma's tab: pieces of several, and none of one."""
    model = edited(sentencepiece_model("bpe", byte_fallback=True), "q", "\t\t")
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    for text in ("\t", "\t\t", "a\t\t\tb", "\n\t\t\t\t\n"):
        assert ids_of(found, text) == original.encode(text), text
        assert found.decode(ids_of(found, text)) == text


def piece(text: str, score: float, kind: int = 1) -> bytes:
    raw = text.encode()
    inner = b"\x0a" + varint(len(raw)) + raw + b"\x15" + struct.pack("<f", score)
    inner += b"\x18" + bytes([kind])
    return b"\x0a" + varint(len(inner)) + inner


def varint(number: int) -> bytes:
    """Return a number below 2**14 as protobuf writes it."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


def edited(model: bytes, old: str, new: str) -> bytes:
    """Give a piece of one character another text."""
    before = b"\x0a" + bytes([len(old)]) + old.encode() + b"\x15"
    after = b"\x0a" + bytes([len(new)]) + new.encode() + b"\x15"
    at = model.index(before) - 1
    size = model[at] + len(new) - len(old)
    return model[:at] + bytes([size]) + after + model[at + 1 + len(before) :]


UNK = piece("<unk>", 0, 2)
TRAINER_BPE = b"\x12\x02\x18\x02"


@pytest.mark.parametrize("lengths", [range(2, 17), (2, 4, 8, 16), (2, 3, 5, 9), (2, 4, 6)])
def test_runs_of_one_score(lengths: Sequence[int], tmp_path: Path) -> None:
    """Llama 2's spaces, which were added after the training."""
    ids = {"<unk>": 2, "<s>": 3, "</s>": 3, "a": 1, "\u2581": 1, "\u2581a": 1}
    runs = "".join("\u2581" * length + " " for length in lengths).split()
    model = b"".join(piece(text, -2 - len(text), kind) for text, kind in ids.items())
    model += b"".join(piece(run, -1e9) for run in runs) + TRAINER_BPE + b"\x1a\x02\x20\x00"
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = converted(tmp_path, model)
    for length in range(60):
        for text in (" " * length, "a" + " " * length + "a", " " * length + "a"):
            assert ids_of(found, text) == original.encode(text), (length, text)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"nonsense", "is neither a sentencepiece model nor a file of tiktoken's: byte"),
        (b"", "it has no pieces"),
        (UNK + bytes(9), "no field has the number 0"),
        (UNK + piece("a" * 4097, 0) + TRAINER_BPE, "a piece has 4097 characters"),
        (UNK[:-3], "goes beyond the end"),
        (UNK, "it has no trainer_spec: is it cut off"),
        (UNK + b"\x12\x02\x18\x04", "it is neither of the kind unigram nor bpe"),
        (UNK + b"\x1a\x02\x28\x00" + TRAINER_BPE, "it leaves spaces as they are"),
        (UNK + b"\x1a\x03\x12\x01x" + TRAINER_BPE, "it normalises texts by rules of its own"),
        (piece("a", 0) + TRAINER_BPE, "it must have one piece of the type unknown"),
        (UNK + piece("a", 0, 5) + TRAINER_BPE, "piece 'a' is of the type unused"),
        (UNK + piece("a b", 0, 4) + TRAINER_BPE, "a user defined the piece 'a b', with a space"),
        (UNK + piece("<0x41>", 0, 6) + TRAINER_BPE, "it has 1 pieces of the type byte"),
        (UNK + piece("a", 0) * 2 + TRAINER_BPE, "tokens 1 and 2 are both 'a'"),
        (UNK + piece("", 0) + TRAINER_BPE, "token 1 has no text"),
        (UNK + piece("a", 0) + piece("ab", 1) + TRAINER_BPE, "pieces with 'b', and it is none"),
        (
            UNK + b"".join(piece(text, -1) for text in ("a", "b", "ab", "ba")) + TRAINER_BPE,
            "pieces 'ab' and 'ba' have the same score, -1",
        ),
    ],
)
def test_what_cannot_be_had_exactly_is_refused(model: bytes, message: str, tmp_path: Path) -> None:
    config = {**LLAMA, "add_bos_token": False}
    with pytest.raises(ModelFolderError, match=message) as raised:
        converted(tmp_path, model, **config)
    assert str(raised.value).startswith(str(tmp_path / "tokenizer.model"))


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc_cf"])
def test_normalisation_is_refused(rule: str, tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", normalization_rule_name=rule)
    with pytest.raises(ModelFolderError, match=f"normalises texts by {rule}, which no tokenizer"):
        converted(tmp_path, model)


def test_why_normalisation_is_refused(tmp_path: Path) -> None:
    """Where this fails, the library may have become exact: then look again."""
    model = sentencepiece_model("bpe", normalization_rule_name="nmt_nfkc")
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    normaliser = Precompiled(read_model(tmp_path, model).charsmap)
    text, mark = "\u00bd\u0e31", "\u0e31"
    assert original.normalize(text).endswith(mark)
    assert mark not in normaliser.normalize_str(text)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tokenizer_class": "OddTokenizer"}, "tokenizer_class is 'OddTokenizer': how it uses"),
        ({"add_prefix_space": False}, "add_prefix_space is False, and add_dummy_prefix of"),
        ({"legacy": "yes"}, "legacy is 'yes', must be true or false"),
        ({"bos_token": "<|none|>"}, r"bos_token is '<\|none\|>', which has no id"),
        ({"added_tokens_decoder": {"899": {"content": "<x>"}}}, "they must be the same"),
        ({"added_tokens_decoder": {"900": {"content": "the"}}}, "must have an id|are both 'the'"),
        ({"added_tokens_decoder": {"x": 1}}, "must have an id below 1000000000 for a key"),
    ],
)
def test_what_the_folder_says_wrong_is_named(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True, user_defined_symbols="the")
    with pytest.raises(ModelFolderError, match=message):
        converted(tmp_path, model, **config)


def test_the_model_type_says_the_class_where_nothing_else_does(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True)
    for model_type, refused in (("mistral", False), ("gemma2", False), ("odd", True)):
        folder = write_folder(tmp_path / model_type, "tokenizer.model", model, model_type)
        if refused:
            with pytest.raises(
                ModelFolderError, match="no tokenizer_class, and model_type is 'odd'"
            ):
                tokenizer_text(folder)
        else:
            assert Tokenizer.from_str(tokenizer_text(folder)).encode("the").ids[0] == 1


def test_bytes_cut_anywhere_are_refused(tmp_path: Path) -> None:
    whole = sentencepiece_model("bpe", byte_fallback=True)
    for end in itertools.chain(range(0, 200), range(200, len(whole), 97)):
        folder = write_folder(tmp_path, "tokenizer.model", whole[:end], **LLAMA)
        with pytest.raises(ModelFolderError, match=r"tokenizer\.model"):
            tokenizer_text(folder)
