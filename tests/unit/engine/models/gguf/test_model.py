import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from support.gguf_bytes import STRING, UINT32, field, head, tensor, text, written
from support.gguf_files import write_gguf
from support.prompt_logits import prompt_logits
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.gguf.architectures import ARCHITECTURES
from pagoda_engine.models.gguf.model import GgufModel

LLAMA = field("general.architecture", STRING, text("llama"))


def integer(key: str, value: int) -> bytes:
    return field(key, UINT32, struct.pack("<I", value))


SHAPE = [
    LLAMA,
    integer("llama.embedding_length", 64),
    integer("llama.block_count", 1),
    integer("llama.feed_forward_length", 64),
    integer("llama.attention.head_count", 4),
    integer("llama.context_length", 64),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(make_tiny_checkpoint(tmp_path / "folder"), tmp_path / "model.gguf")


def load(path: Path, **options: str) -> LoadedModel:
    return load_model(path, EngineConfig(max_model_len=64, **{"dtype": "float32", **options}))


def test_a_file_says_which_type_most_of_its_weights_have(path: Path, tmp_path: Path) -> None:
    assert load(path).quantization_name == "none"
    coded = write_gguf(tmp_path / "folder", tmp_path / "coded.gguf", "Q8_0")
    assert load(coded).quantization_name == "gguf-q8_0"


def test_other_architectures_are_refused_with_the_supported_ones(tmp_path: Path) -> None:
    path = written(tmp_path, head([field("general.architecture", STRING, text("falcon"))]))
    with pytest.raises(UnsupportedModelError, match=r"'falcon' is not sup.*llama, qwen2"):
        GgufModel(path)
    with pytest.raises(UnsupportedModelError, match="architecture None"):
        GgufModel(written(tmp_path, head()))


@pytest.mark.parametrize("missing", SHAPE[1:], ids=range(1, len(SHAPE)))
def test_errors_name_the_key_of_the_file(missing: bytes, tmp_path: Path) -> None:
    fields = [each for each in SHAPE if each is not missing]
    key = missing[8 : 8 + struct.unpack("<Q", missing[:8])[0]].decode()
    embedding = tensor("token_embd.weight", [0, 64])
    with pytest.raises(CheckpointError, match=f"{key} is missing"):
        GgufModel(written(tmp_path, head(fields, [embedding])))


def test_a_part_of_a_file_is_refused(tmp_path: Path) -> None:
    fields = [*SHAPE, integer("split.count", 3)]
    with pytest.raises(CheckpointError, match="is one of 3 parts; join them first"):
        GgufModel(written(tmp_path, head(fields)))


def test_types_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    tensors = [tensor("token_embd.weight", [256, 2], type_id=16)]
    model = GgufModel(written(tmp_path, head(SHAPE, tensors) + bytes(1024)))
    with pytest.raises(
        UnsupportedModelError, match=r"token_embd.weight, 'IQ2_XXS' is not supported"
    ):
        model.tensors()


def test_a_table_that_the_file_only_claims_takes_no_memory(tmp_path: Path) -> None:
    tensors = [tensor("token_embd.weight", [0, 2**31 - 1])]
    path = written(tmp_path, head(SHAPE, tensors))
    with pytest.raises(CheckpointError, match=r"token_embd.weight is \[2147483647, 0\]"):
        load(path)


def test_a_sound_head_before_a_cut_tensor_is_refused(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match="copy it again"):
        load(path)


def test_nothing_is_written_beside_the_file(path: Path) -> None:
    before = {each: each.stat().st_mtime_ns for each in path.parent.rglob("*")}
    load(path)
    assert {each: each.stat().st_mtime_ns for each in path.parent.rglob("*")} == before


def test_identity_covers_weights_and_metadata_and_no_name(path: Path) -> None:
    identity = load(path).fingerprint
    copy = shutil.copy(path, path.with_name("copy.gguf"))
    assert load(copy).fingerprint == identity
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    copy.write_bytes(data)
    assert load(copy).fingerprint != identity
    other = write_gguf(path.parent / "folder", path.with_name("other.gguf"), rope__freq_scale=1.0)
    assert load(other).fingerprint != identity
    assert load(path, quantization="int8").fingerprint != identity


def test_ends_are_those_named_and_those_known(path: Path) -> None:
    # 257 is named as eos; 259 is <|im_end|>, a control token.
    assert load(path).eos_token_ids == {257, 259}


def test_architectures_are_families() -> None:
    from pagoda_engine.models.families.registry import FAMILIES

    assert {architecture.class_name for architecture in ARCHITECTURES.values()} <= set(FAMILIES)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("Q8_0", "bfloat16")]
)
def test_the_dtype_is_that_of_the_matrices(kind: str, dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "folder")
    model = GgufModel(write_gguf(folder, tmp_path / "model.gguf", kind))
    assert model.description.dtype == dtype


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_can_be_quantised_as_a_folders(quantization: str, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "folder")
    path = write_gguf(folder, tmp_path / "model.gguf")
    expected = load(folder, quantization=quantization)
    found = load(path, quantization=quantization)
    tokens = list(range(30))
    assert torch.equal(prompt_logits(found, tokens), prompt_logits(expected, tokens))


def test_a_window_of_llama_is_left_out_as_llama_cpp_does(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    assert "sliding_window" not in config
    path = write_gguf(folder, tmp_path / "model.gguf", attention__sliding_window=3)
    assert set(GgufModel(path).description.sliding_windows) == {None}
