import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import EngineDriver
from support.tiny_checkpoints import EOS_TOKEN_ID, VOCAB_SIZE, make_tiny_checkpoint

from pagoda_engine import (
    CheckpointError,
    EngineConfig,
    InvalidConfigError,
    LoadedModel,
    SamplingParams,
    load_model,
)
from pagoda_engine.models import model_folder
from pagoda_kernels.native.library import native_library

PROMPT = list(range(40, 60))


def load(folder: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(folder, EngineConfig(dtype=dtype, max_model_len=128))


def first_tokens(model: LoadedModel, num_tokens: int = 8) -> list[int]:
    driver = EngineDriver(model, EngineConfig(num_blocks=16, max_model_len=128))
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    return driver.generate([PROMPT], sampling=params)[0]


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of a checkpoint; None removes one. Dots are written as double underscores."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, tensor in changes.items():
        if tensor is None:
            del weights[name.replace("__", ".")]
        else:
            weights[name.replace("__", ".")] = tensor
    save_file(weights, path)


def test_loaded_model_says_what_it_is(tiny_model: LoadedModel) -> None:
    assert tiny_model.vocab_size == VOCAB_SIZE
    assert tiny_model.max_position_embeddings == 512
    assert tiny_model.dtype is torch.float32
    assert tiny_model.eos_token_ids == {EOS_TOKEN_ID, 259}
    assert len(tiny_model.fingerprint) == 16


def test_eos_comes_from_config_without_generation_config(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    (folder / "generation_config.json").unlink()
    assert load(folder).eos_token_ids == {EOS_TOKEN_ID}


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    single = load(make_tiny_checkpoint(tmp_path / "single"))
    sharded = load(make_tiny_checkpoint(tmp_path / "sharded", num_shards=3))
    assert first_tokens(sharded) == first_tokens(single)


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [make_tiny_checkpoint(tmp_path / name) for name in ("a", "b")]
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()


@pytest.mark.parametrize(
    ("model_type", "end"),
    [("exaone", "missing. model_type 'exaone' is not of LlamaForCausalLM"), ("llama", "missing$")],
)
def test_a_missing_tensor_of_another_familys_model(
    tmp_path: Path, model_type: str, end: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": model_type}))
    edit_weights(folder, model__embed_tokens__weight=None)
    with pytest.raises(CheckpointError, match=f"tensor model.embed_tokens.weight is {end}"):
        load(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_bfloat16_is_close_to_float32(tmp_path: Path, family: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, family)
    params = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=VOCAB_SIZE)
    logprobs = []
    for dtype in ("float32", "bfloat16"):
        driver = EngineDriver(load(folder, dtype), EngineConfig(num_blocks=16, max_model_len=128))
        driver.add("a", PROMPT, sampling=params)
        top = driver.run()["a"].logprobs[0].top
        logprobs.append(torch.tensor([p for _, p in sorted(top)]))
    difference = (logprobs[0] - logprobs[1]).abs().mean()
    assert difference < 0.1


def test_auto_dtype_on_cpu_never_is_float16(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, torch_dtype="float16")
    assert load(folder, "auto").dtype is torch.float32


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("has_products", [True, False], ids=["bf16-products", "none"])
def test_auto_dtype_on_cpu_is_bfloat16_where_that_is_fast(
    is_native: bool, has_products: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_native and native_library() is None:
        pytest.skip("there are no native operators for this processor")
    if not is_native:
        monkeypatch.setattr(model_folder, "native_library", lambda: None)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_products)
    folder = make_tiny_checkpoint(tmp_path, torch_dtype="bfloat16")
    is_fast = is_native or has_products
    assert load(folder, "auto").dtype is (torch.bfloat16 if is_fast else torch.float32)


def test_unknown_dtype_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(InvalidConfigError, match="dtype is 'int8', must be one of auto, float32"):
        load(tiny_folder, "int8")


@pytest.mark.parametrize("device", ["tpu", "meta", "no such device"])
def test_unknown_device_is_refused(tiny_folder: Path, device: str) -> None:
    with pytest.raises(InvalidConfigError, match="device"):
        load_model(tiny_folder, EngineConfig(device=device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_missing_cuda_is_named(tiny_folder: Path) -> None:
    with pytest.raises(InvalidConfigError, match="no CUDA device"):
        load_model(tiny_folder, EngineConfig(device="cuda"))


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    edit_weights(folder, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load(folder)


def test_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    edit_weights(folder, model__norm__weight=torch.ones(3))
    with pytest.raises(CheckpointError, match=r"norm.weight is \[3\], the configuration says \[64"):
        load(folder)


def test_tensor_without_a_use_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    edit_weights(folder, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    with pytest.raises(CheckpointError, match="1 tensors have no use: model"):
        load(folder)


def test_harmless_extra_tensors_are_ignored(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    expected = first_tokens(load(folder))
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(
        folder,
        lm_head__weight=embedding,
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8),
    )
    assert first_tokens(load(folder)) == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_weights_of_another_kind_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    edit_weights(folder, model__norm__weight=torch.ones(64).to(dtype))
    with pytest.raises(
        CheckpointError, match=r"model\.norm\.weight is .*, must be one of F64, F32"
    ):
        load(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_progress_ends_when_all_bytes_are_loaded(
    tmp_path: Path, family: str, is_tied: bool
) -> None:
    folder = make_tiny_checkpoint(tmp_path, family, tie_word_embeddings=is_tied, num_shards=2)
    calls: list[tuple[int, int]] = []
    load_model(folder, EngineConfig(dtype="bfloat16"), lambda *counts: calls.append(counts))
    loaded = [bytes_loaded for bytes_loaded, _ in calls]
    assert loaded == sorted(set(loaded))
    # The checkpoint is float32; what it holds counts, not what is made of it.
    weights = [load_file(path) for path in folder.glob("*.safetensors")]
    num_bytes = sum(tensor.nbytes for shard in weights for tensor in shard.values())
    assert {total for _, total in calls} == {num_bytes}
    assert loaded[-1] == num_bytes


def test_progress_leaves_ignored_tensors_out(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, lm_head__weight=embedding)
    calls: list[tuple[int, int]] = []
    load_model(folder, EngineConfig(), lambda *counts: calls.append(counts))
    assert calls[-1][0] == calls[-1][1]


def test_what_is_loaded_does_not_depend_on_the_files(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    model = load(folder)
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))  # a map of the file would turn to zeros
    again = load_file(make_tiny_checkpoint(tmp_path / "again") / "model.safetensors")
    kept = again["model.embed_tokens.weight"]
    assert torch.equal(model.decoder._embedding(torch.arange(len(kept))), kept)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="only safetensors weights can be loaded"):
        load(folder)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        load(folder)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: is missing"):
        load(folder)


@pytest.mark.parametrize(
    "weight_map", [{}, {"x": 3}, {"x": ["model.safetensors"]}, {"x": 3, "y": "z"}], ids=str
)
def test_index_must_name_files(tmp_path: Path, weight_map: dict[str, object]) -> None:
    folder = make_tiny_checkpoint(tmp_path, num_shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"index\.json: weight_map must name a file"):
        load(folder)


def test_a_file_that_was_left_behind_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, num_shards=2)
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"does not name model\.safetensors, which is there"):
        load(folder)


def test_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", num_shards=2)
    (tmp_path / "other.safetensors").write_bytes(b"")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../other.safetensors"}}))
    with pytest.raises(CheckpointError, match="is missing"):
        load(folder)


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, num_shards=2)
    path = folder / "model-00002-of-00002.safetensors"
    first = load_file(folder / "model-00001-of-00002.safetensors")
    name, tensor = next(iter(first.items()))
    save_file({**load_file(path), name: tensor}, path)
    with pytest.raises(CheckpointError, match=f"holds {name}, and so does another file"):
        load(folder)


def test_a_tied_model_of_random_weights_needs_no_files(tmp_path: Path) -> None:
    """Its index may name an output projection all the same."""
    folder = make_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    (folder / "model.safetensors").unlink()
    weight_map = {"lm_head.weight": "model-1.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    load_model(folder, EngineConfig(load_format="dummy"))


def test_an_index_may_name_an_output_projection_that_is_not_there(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    names = [*load_file(folder / "model.safetensors"), "lm_head.weight"]
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "model.safetensors")}))
    assert load(folder).description.tie_word_embeddings
