import json
import re
from pathlib import Path
from typing import Any

import pytest

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.checkpoints.quantised.config import read_scheme
from pagoda_engine.errors import CheckpointError, UnsupportedModelError

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": WEIGHTS}},
}


def said(tmp_path: Path, config: Any) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization_config": config}))
    return str(read_scheme(ConfigReader.open(path)))


def test_no_field_is_no_format(tmp_path: Path) -> None:
    assert said(tmp_path, None) == "None"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GPTQ, "gptq (4 bits, groups of 128)"),
        ({**GPTQ, "bits": 8, "group_size": -1}, "gptq (8 bits, one group)"),
        ({**GPTQ, "dynamic": {"-:lm_head": {}}}, "gptq (4 bits, groups of 128)"),
        (AWQ, "awq (4 bits, groups of 128)"),
        ({**AWQ, "version": "GEMM"}, "awq (4 bits, groups of 128)"),
        ({"quant_method": "fp8"}, "fp8 (e4m3, scales of tensors or outputs)"),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 64]},
            "fp8 (e4m3, blocks of 128 x 64)",
        ),
        (PACKED, "compressed-tensors pack-quantized (4 bits, groups of 128)"),
    ],
)
def test_what_is_read(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    assert said(tmp_path, config) == text


def test_blocks_may_be_said_as_text(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x64"}
    config = {**PACKED, "format": "float-quantized", "config_groups": {"g": {"weights": weights}}}
    assert said(tmp_path, config).endswith("(e4m3, blocks of 128 x 64)")


def test_the_file_of_older_tools(tmp_path: Path) -> None:
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 64}))
    assert said(tmp_path, None) == "gptq (4 bits, groups of 64)"
    assert said(tmp_path, AWQ) == "awq (4 bits, groups of 128)", "config.json comes first"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "quant_method 'bitsandbytes' is not supported; supported: gptq (4 and 8 bits), awq "
            "(4 bits, version gemm), fp8 (e4m3), compressed-tensors (float-quantized, "
            "pack-quantized and int-quantized of 4 and 8 bits)",
        ),
        ({**GPTQ, "bits": 3}, "bits 3 is not supported; supported: 4, 8"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        ({**GPTQ, "dynamic": {"+:mlp": {"bits": 8}}}, "dynamic '+:mlp' is not supported"),
        ({**AWQ, "version": "gemv"}, "version 'gemv' is not supported; supported: gemm"),
        ({**AWQ, "bits": 8}, "bits 8 is not supported; supported: 4"),
        ({**AWQ, "zero_point": False}, "zero_point False is not supported; supported: true"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2' is not supported; supported: e4m3"),
        (
            {**PACKED, "format": "nvfp4-pack-quantized"},
            "format 'nvfp4-pack-quantized (4 bits, int, group)' is not supported; supported: "
            "float-quantized, pack-quantized and int-quantized of 4 and 8 bits",
        ),
        ({**PACKED, "sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
        ({**PACKED, "quantization_status": "frozen"}, "quantization_status 'frozen'"),
        (
            {
                **PACKED,
                "config_groups": {"a": {"weights": WEIGHTS}, "b": {"weights": {"num_bits": 8}}},
            },
            "config_groups ['a', 'b'] is not supported; supported: groups with the same weights",
        ),
    ],
)
def test_what_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(message)) as error:
        said(tmp_path, config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"bits": 4}, "quant_method is missing"),
        (7, "quantization_config is 7, must be an object"),
        ({**GPTQ, "bits": "4"}, "bits is '4', must be a positive integer"),
        ({**GPTQ, "group_size": 0}, "group_size is 0, must be -1 or from 1 to 1048576"),
        ({**GPTQ, "group_size": 2**31}, "group_size is 2147483648, must be -1 or"),
        ({**GPTQ, "group_size": None}, "group_size is None, must be -1 or"),
        ({**GPTQ, "group_size": True}, "group_size is True, must be -1 or"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is [128], must"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size is [0, 1], must"),
        ({**PACKED, "config_groups": {}}, "config_groups [] is not supported"),
        ({**PACKED, "config_groups": {"a": {}}}, "weights is missing"),
    ],
)
def test_fields_that_are_wrong_are_named(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        said(tmp_path, config)
