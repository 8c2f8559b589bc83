"""What is read of a PEFT folder, and what is refused, in words that say what to do."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.adapters import make_tiny_adapter
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import AdapterError, CheckpointError, read_adapter
from pagoda_engine.adapters.adapter import LoraWeights
from pagoda_engine.adapters.adapter_numbers import MAX_GAIN, check_numbers
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.registry import read_description

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture
def description(base: Path) -> DecoderDescription:
    return read_description(base / "config.json")


@pytest.fixture
def folder(tmp_path: Path, base: Path) -> Path:
    return make_tiny_adapter(tmp_path / "adapter", base, seed=1)


def test_what_is_read(folder: Path, description: DecoderDescription) -> None:
    adapter = read_adapter(folder, description, max_rank=4)
    assert (adapter.rank, adapter.scale) == (4, 2.0)
    assert len(adapter.weights) == 4 * description.num_layers
    q_proj = adapter.weights["model.layers.1.self_attn.q_proj"]
    stored = load_file(folder / WEIGHTS)
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_{}.weight"
    assert torch.equal(q_proj.a, stored[name.format("A")])
    assert torch.equal(q_proj.b, stored[name.format("B")])


def test_a_rank_stabilised_scale(folder: Path, description: DecoderDescription) -> None:
    change_config(folder, use_rslora=True)
    assert read_adapter(folder, description, max_rank=4).scale == 8 / 4**0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "use_dora.*without DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save.*lm_head.*without whole modules"),
        ({"bias": "all"}, 'bias.*with bias "none"'),
        ({"lora_bias": True}, "without lora_bias"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern.*one rank"),
        ({"alpha_pattern": {"q_proj": 8}}, "alpha_pattern.*one lora_alpha"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights.*convert"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens.*not known here"),
        ({"something_of_tomorrow": {"x": 1}}, "something_of_tomorrow.*not known here"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', must be 'LORA'"),
        ({"task_type": "SEQ_CLS"}, "task_type"),
        ({"r": 5}, "r is 5, must be at most 4.*max_adapter_rank"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": "high"}, "lora_alpha"),
        ({"lora_alpha": 1e308}, "lora_alpha is 1e.308, must be at most 262016"),
        ({"lora_alpha": 2**70, "use_rslora": True}, "must be at most 131008"),
    ],
)
def test_what_a_configuration_may_not_ask_for(
    folder: Path, description: DecoderDescription, fields: dict[str, object], message: str
) -> None:
    change_config(folder, **fields)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_adapter(folder, description, max_rank=4)
    assert "adapter_config.json" in str(caught.value)


def test_tensors_of_what_has_no_adapters(folder: Path, description: DecoderDescription) -> None:
    change_tensors(folder, {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)})
    with pytest.raises(AdapterError, match=r"lm_head.*lora_A and lora_B of down_proj, gate_proj"):
        read_adapter(folder, description, max_rank=4)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("{}.lora_magnitude_vector", torch.zeros(64), "lora_magnitude_vector.*not served"),
        ("{}.lora_A.weight", torch.zeros(4, 63), r"is \[4, 63\], must be \[4, 64\]"),
        ("{}.lora_A.weight", torch.zeros(3, 64), r"is \[3, 64\], must be \[4, 64\]"),
        ("{}.lora_A.weight", torch.zeros(4, 64).int(), "must be one of"),
        ("{}.lora_A.weight", torch.zeros(4, 64, 1), r"is \[4, 64, 1\], must be \[4, 64\]"),
        ("{}.lora_A.weight", torch.full((4, 64), torch.nan), r"q_proj\.lora_A .*not finite"),
        ("{}.lora_B.weight", torch.full((64, 4), -torch.inf), r"q_proj\.lora_B .*not finite"),
        (
            "{}.lora_B.weight",
            torch.full((64, 4), 1e100, dtype=torch.float64),
            r"q_proj\.lora_B has numbers up to 1e\+100, must be at most 3\.4e\+38 for float32",
        ),
        ("other.{}.lora_A.weight", torch.zeros(4, 64), "must begin with"),
    ],
)
def test_tensors_that_do_not_fit(
    folder: Path, description: DecoderDescription, name: str, tensor: torch.Tensor, message: str
) -> None:
    own = name.format("base_model.model.model.layers.0.self_attn.q_proj")
    change_tensors(folder, {own: tensor})
    with pytest.raises(AdapterError, match=message):
        read_adapter(folder, description, max_rank=4)


def test_numbers_that_the_models_dtype_has_not(
    folder: Path, description: DecoderDescription
) -> None:
    own = "base_model.model.model.layers.0.self_attn.q_proj"
    tiny = {f"{own}.lora_A.weight": torch.full((4, 64), 1e-9)}
    change_tensors(folder, tiny | {f"{own}.lora_B.weight": torch.full((64, 4), 7e4)})
    read_adapter(folder, description, max_rank=4, dtype=torch.bfloat16)
    with pytest.raises(AdapterError, match=r"up to 7e\+04, must be at most 6.55e\+04 for float16"):
        read_adapter(folder, description, max_rank=4, dtype=torch.float16)


def test_a_scale_with_which_nothing_is_left_of_the_model(
    folder: Path, description: DecoderDescription
) -> None:
    change_config(folder, lora_alpha=200_000)
    with pytest.raises(AdapterError, match=r"_proj: scale times B A .*scale is 50000: check lora_"):
        read_adapter(folder, description, max_rank=4)


@pytest.mark.parametrize("shape", [(3, 20, 30), (8, 64, 16)])
def test_how_large_a_product_is(shape: tuple[int, int, int]) -> None:
    rank, rows, columns = shape
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(rank, columns, generator=generator)
    b = torch.randn(rows, rank, generator=generator)
    norm = float((0.7 * b.double() @ a.double()).norm()) / rows**0.5
    just, over = (LoraWeights(a, b * factor * MAX_GAIN / norm) for factor in (0.5, 2.0))
    check_numbers(Path("x"), "q_proj", just, 0.7, torch.float32)
    with pytest.raises(AdapterError, match="q_proj: scale times B A makes outputs of"):
        check_numbers(Path("x"), "q_proj", over, 0.7, torch.float32)


def test_one_side_alone(folder: Path, description: DecoderDescription) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(AdapterError, match=r"but no .*q_proj\.lora_B\.weight"):
        read_adapter(folder, description, max_rank=4)


def test_experts_have_no_adapters(tmp_path: Path) -> None:
    base = make_tiny_checkpoint(tmp_path / "moe", "mixtral")
    description = read_description(base / "config.json")
    folder = make_tiny_adapter(tmp_path / "a", base, seed=1, modules=("self_attn.q_proj", "w1"))
    with pytest.raises(AdapterError, match=r"experts\.0\.w1.*not served"):
        read_adapter(folder, description, max_rank=4)


def test_files_that_are_not_there(folder: Path, description: DecoderDescription) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(AdapterError, match="cannot be read: No such file"):
        read_adapter(folder, description, max_rank=4)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: cannot be read"):
        read_adapter(folder, description, max_rank=4)


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json"])
def test_pipes_and_devices_are_not_waited_for(
    folder: Path, description: DecoderDescription, name: str
) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises((AdapterError, CheckpointError), match="it is not a regular file"):
        read_adapter(folder, description, max_rank=4)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises((AdapterError, CheckpointError), match="it is not a regular file"):
        read_adapter(folder, description, max_rank=4)


def test_a_file_that_was_cut(folder: Path, description: DecoderDescription) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-10])
    with pytest.raises(CheckpointError, match="copy it again"):
        read_adapter(folder, description, max_rank=4)


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(load_file(folder / WEIGHTS) | tensors, folder / WEIGHTS)
