"""MXFP4 as the engine reads it: every number there is, and files that are not as they should be."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.family_checkpoints import make_family_checkpoint
from support.mxfp4_checkpoints import pack

from pagoda_engine import CheckpointError, EngineConfig, load_model
from pagoda_engine.checkpoints import mxfp4
from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.models.families.registry import describe

GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"
LEVELS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def decoded(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = torch.full((*scales.shape[:-1], scales.shape[-1] * 32), torch.nan, dtype=dtype)
    mxfp4.decode(blocks, scales, values)
    return values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_every_number_with_every_scale_is_exact(dtype: torch.dtype) -> None:
    """In float16 what is below its smallest number is not; it is rounded."""
    num_scales = mxfp4.largest_scale(dtype) + 1
    codes = torch.arange(32) % 16
    block = (codes[::2] | codes[1::2] << 4).to(torch.uint8)
    scales = torch.arange(num_scales).to(torch.uint8)
    found = decoded(block.expand(num_scales, 1, 16), scales[:, None], dtype)
    signs = [1.0] * 8 + [-1.0] * 8
    numbers = torch.tensor([s * v for s, v in zip(signs, LEVELS * 2, strict=True)]).double()
    want = numbers[codes] * 2.0 ** (torch.arange(num_scales).double() - 127)[:, None]
    assert torch.equal(found, want.to(dtype))
    assert found.isfinite().all()
    coded = mxfp4.as_codes(block.expand(num_scales, 1, 16), scales[:, None], dtype)
    assert torch.equal(coded.dequantised(), found)
    if dtype is not torch.float16:
        assert torch.equal(found.double(), want)
    assert (6 * 2.0 ** (num_scales - 127)) > torch.finfo(dtype).max, "one more is too large"


def test_blocks_of_several_rows_keep_their_places(seed: int) -> None:
    numbers = torch.tensor(LEVELS + [-level for level in LEVELS])
    weight = numbers[torch.randint(16, (3, 5, 96))]
    weight *= 2.0 ** torch.randint(-9, 9, (3, 5, 3)).repeat_interleave(32, -1)
    found = decoded(*pack(weight), torch.float32)
    assert torch.equal(found, pack_and_widen(weight))
    assert torch.equal(found, weight)
    assert torch.equal(
        mxfp4.as_codes(*pack(weight), torch.float32).dequantised(), found.flatten(0, 1)
    )
    turned = [tensor.transpose(0, 1) for tensor in pack(weight)]
    assert torch.equal(decoded(*turned, torch.float32), found.transpose(0, 1))


def pack_and_widen(weight: torch.Tensor) -> torch.Tensor:
    """One number at a time."""
    blocks, scales = pack(weight)
    wide = torch.empty_like(weight)
    for place in torch.cartesian_prod(*map(torch.arange, weight.shape)):
        expert, row, column = place.tolist()
        byte = int(blocks[expert, row, column // 32, column % 32 // 2])
        code = byte >> 4 if column % 2 else byte & 15
        sign = -1.0 if code & 8 else 1.0
        power = 2.0 ** (int(scales[expert, row, column // 32]) - 127)
        wide[expert, row, column] = sign * LEVELS[code & 7] * power
    return wide


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    changed = {**load_file(path), **{GATE_UP + end: tensor for end, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"_scales": None}, r"gate_up_proj_scales is missing"),
        ({"_blocks": torch.zeros(6, 192, 2, 15).byte()}, r"\[6, 192, 2, 15\], the conf.* 2, 16\]"),
        ({"_scales": torch.ones(6, 192, 2)}, r"gate_up_proj_scales is F32, must be one of U8"),
        ({"_scales": torch.full((6, 192, 2), 255).byte()}, r"2 \*\* 128, .* for float32; copy the"),
        ({"_bias": torch.zeros(6, 192).byte()}, r"gate_up_proj_bias is U8, must be one of F64"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor | None], message: str
) -> None:
    change(make_family_checkpoint(tmp_path, "gpt_oss_mxfp4"), **tensors)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path, EngineConfig(dtype="float32"))


def test_a_scale_that_float16_has_not_is_named(tmp_path: Path) -> None:
    folder = make_family_checkpoint(tmp_path, "gpt_oss_mxfp4")
    change(folder, _scales=torch.full((6, 192, 2), 141).byte())
    with pytest.raises(CheckpointError, match=r"2 \*\* 14, with.*float16; set the dtype to bfl"):
        load_model(tmp_path, EngineConfig(dtype="float16"))
    load_model(tmp_path, EngineConfig(dtype="bfloat16"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "quantization_config"),
        ({"intermediate_size": 40}, "intermediate_size is 40, must be a multiple of 32"),
    ],
)
def test_what_is_not_read_is_refused(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    folder = make_family_checkpoint(tmp_path, "gpt_oss_mxfp4")
    config = ConfigReader.open(folder / "config.json")
    with pytest.raises(CheckpointError, match=message):
        describe(ConfigReader(config.path, {**config.fields, **fields}))
