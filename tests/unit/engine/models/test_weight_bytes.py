"""What start-up reckons that weights take, against what they take."""

from pathlib import Path
from typing import Any

import pytest
from support.family_checkpoints import make_family_checkpoint
from support.held_bytes import packed_bytes
from support.quantised_checkpoints import (
    Format,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    quantised_pair,
)
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, load_model
from pagoda_engine.models.model_files import open_model
from pagoda_engine.models.quantization import resolve_quantization
from pagoda_engine.models.weights.num_bytes import Stored, weight_bytes
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library

pytestmark = pytest.mark.skipif(native_library() is None, reason="nothing is packed here")

WHOLE_PANELS: dict[str, Any] = {"vocab_size": 320, "num_key_value_heads": 4}
"""Sizes of which no packed row is rounded up."""

FORMATS: dict[str, Format] = {
    "gptq": gptq(),
    "gptq-act": gptq(desc_act=True),
    "gptq-act-whole": gptq(group_size=-1, desc_act=True),
    "gptq-asym": gptq(sym=False),
    "gptq-8": gptq(8),
    "awq": awq(),
    "awq-16": awq(16),
    "awq-whole": awq(-1),
    "fp8": fp8(),
    "fp8-blocks": fp8((128, 128)),
    "ct-int4": compressed_tensors("pack-quantized", "group", 4, 32),
    "ct-int4-asym": compressed_tensors("pack-quantized", "group", 4, 32, sym=False),
    "ct-int8": compressed_tensors("pack-quantized", "channel", 8),
    "ct-bytes": compressed_tensors("int-quantized", "channel"),
}


def reckoned_and_taken(folder: Path, dtype: str, quantization: str = "none") -> tuple[int, int]:
    config = EngineConfig(dtype=dtype, quantization=quantization, max_model_len=100)
    model, files = load_model(folder, config), open_model(folder)
    given = resolve_quantization(quantization)
    stored = Stored(given, files.scheme, files.tensors(), model.device)
    reckoned = weight_bytes(files.description, model.dtype, stored)
    return reckoned, packed_bytes(model.decoder)


@pytest.fixture(autouse=True)
def sixteen_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold bf16 as it is reckoned: before it is read nobody knows whether twelve bits do."""
    monkeypatch.setattr(packed_linear, "find_exceptions", lambda *_: None)


def test_twelve_bits_are_not_reckoned_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    folder = make_tiny_checkpoint(tmp_path / "model", **WHOLE_PANELS)
    reckoned, taken = reckoned_and_taken(folder, "bfloat16")
    assert taken < reckoned


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FORMATS)
def test_codes_count_as_they_are_held(name: str, dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", **WHOLE_PANELS)
    coded, _ = quantised_pair(folder, FORMATS[name], skip=["layers.1.mlp.up_proj"])
    reckoned, taken = reckoned_and_taken(coded, dtype)
    assert reckoned == taken


@pytest.mark.parametrize("name", ["gptq", "awq", "fp8"])
def test_experts_do_too(name: str, tmp_path: Path) -> None:
    sizes = {**WHOLE_PANELS, "num_local_experts": 64}  # rows of the router, too
    folder = make_tiny_checkpoint(tmp_path / "model", "mixtral", **sizes)
    coded, _ = quantised_pair(folder, FORMATS[name], skip=["sparse_moe.gate"])
    reckoned, taken = reckoned_and_taken(coded, "bfloat16")
    assert reckoned == taken


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_codes_that_weights_are_given(quantization: str, is_tied: bool, tmp_path: Path) -> None:
    sizes = {**WHOLE_PANELS, "tie_word_embeddings": is_tied}
    folder = make_tiny_checkpoint(tmp_path / "model", **sizes)
    for dtype in ("bfloat16", "float32"):
        reckoned, taken = reckoned_and_taken(folder, dtype, quantization)
        assert reckoned == taken


@pytest.mark.parametrize("family", ["gemma4", "gemma4_small", "gemma4_moe"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_layers_that_are_not_alike(family: str, quantization: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 320,
        "vocab_size_per_layer_input": 320,
        "hidden_size": 64,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_global_key_value_heads": 2,
        "num_experts": 64,
        "moe_intermediate_size": 64,
        **({"hidden_size_per_layer_input": 64} if family == "gemma4_small" else {}),
        "num_key_value_heads": 2,
    }
    folder = make_family_checkpoint(tmp_path / "model", family, **sizes)
    reckoned, taken = reckoned_and_taken(folder, "bfloat16", quantization)
    assert reckoned == taken


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    sizes = {"vocab_size": 320, "num_key_value_heads": 4, "num_local_experts": 64}
    dense, coded = (
        reckoned_and_taken(make_family_checkpoint(tmp_path / name, name, **sizes), "bfloat16")
        for name in ("gpt_oss", "gpt_oss_mxfp4")
    )
    assert dense[0] == dense[1]
    assert coded[0] == coded[1] < dense[0] * 0.4
