"""Checkpoints that are quantised already: what is kept, what is widened, what is refused."""

import json
import logging
import math
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.family_checkpoints import make_family_checkpoint
from support.prompt_logits import prompt_logits
from support.quantised_checkpoints import (
    Format,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    quantised_pair,
    say_quantised,
)
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import CheckpointError, EngineConfig, LoadedModel, load_model
from pagoda_engine.errors import UnsupportedModelError
from pagoda_engine.models.feed_forward import DenseFeedForward, Experts
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library

PROMPT = list(range(40, 75))
Q = "model.layers.0.self_attn.q_proj"
native = pytest.mark.skipif(native_library() is None, reason="no native operators here")


def load(folder: Path, **options: str) -> LoadedModel:
    return load_model(folder, EngineConfig(max_model_len=128, **{"dtype": "float32", **options}))


def pair(tmp_path: Path, form: Format, family: str = "llama") -> tuple[Path, Path]:
    return quantised_pair(make_tiny_checkpoint(tmp_path / "model", family), form)


def error(found: LoadedModel, expected: LoadedModel) -> float:
    logits, wanted = (prompt_logits(model, PROMPT).float() for model in (found, expected))
    return float((logits - wanted).norm() / wanted.norm())


def held_bits(model: LoadedModel) -> set[int]:
    """Return the bits of what layers hold; 0 for what is dense."""
    bits = set()
    for layer in model.decoder.layers:
        assert isinstance(layer.feed_forward, DenseFeedForward)
        up, down = layer.feed_forward.up, layer.feed_forward.down
        for each in (layer.attention.qkv, layer.attention.output, up, down):
            assert each.packed is not None
            bits.add(each.packed.code_bits)
    return bits


@native
@pytest.mark.parametrize(
    ("form", "in_bf16", "in_fp32"),
    [
        (gptq(), 4, 0),  # scales are fp16
        (gptq(group_size=-1), 4, 0),
        (gptq(desc_act=True), 0, 0),
        (gptq(sym=False), 4, 0),
        (gptq(8), 8, 0),
        (awq(), 4, 0),
        (awq(-1), 4, 0),
        (awq(16), 0, 0),  # a group of the products is of 32
        (fp8(), 0, 0),
        (compressed_tensors("pack-quantized", "group", 4, 32), 4, 4),  # scales are bf16
        (compressed_tensors("pack-quantized", "channel", 8), 8, 8),
        (compressed_tensors("int-quantized", "channel"), 8, 8),
    ],
)
def test_codes_are_kept_where_that_loses_nothing(
    form: Format, in_bf16: int, in_fp32: int, tmp_path: Path
) -> None:
    coded, dense = pair(tmp_path, form)
    exact = load(dense)
    kept, widened = load(coded, dtype="bfloat16"), load(dense, dtype="bfloat16")
    assert held_bits(kept) == {in_bf16}
    assert error(kept, exact) < 1.3 * error(widened, exact)
    found = load(coded)
    assert held_bits(found) == {in_fp32}
    assert error(found, exact) < 1e-5
    assert kept.decoder.is_native


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (gptq(), "gptq-int4"),
        (gptq(8), "gptq-int8"),
        (awq(), "awq-int4"),
        (fp8(), "fp8"),
        (compressed_tensors("float-quantized", "channel"), "compressed-tensors-fp8"),
        (compressed_tensors("pack-quantized", "group", 4, 32), "compressed-tensors-int4"),
        (compressed_tensors("int-quantized", "channel"), "compressed-tensors-int8"),
    ],
)
def test_a_model_says_what_its_checkpoint_is(form: Format, name: str, tmp_path: Path) -> None:
    coded, dense = pair(tmp_path, form)
    assert load(coded).quantization_name == name
    assert load(coded, quantization="int8").quantization_name == "int8"
    assert load(coded, load_format="dummy").quantization_name == "none"
    assert load(dense).quantization_name == "none"


def test_so_does_gpt_oss(tmp_path: Path) -> None:
    for family, name in (("gpt_oss", "none"), ("gpt_oss_mxfp4", "mxfp4")):
        folder = make_family_checkpoint(tmp_path / family, family)
        assert load(folder).quantization_name == name


@native
@pytest.mark.parametrize(("form", "bits"), [(gptq(), 4), (awq(), 4), (fp8(), 0)])
def test_experts_keep_their_codes(form: Format, bits: int, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", "mixtral")
    coded, dense = quantised_pair(folder, form, skip=["sparse_moe.gate"])
    kept, exact = load(coded, dtype="bfloat16"), load(dense)
    for layer in kept.decoder.layers:
        assert isinstance(layer.feed_forward, Experts)
        packed = layer.feed_forward.packed
        assert packed is not None
        for expert in packed.experts:
            assert [each.code_bits for each in (expert.gate_up, expert.down)] == [bits] * 2
    assert error(load(coded), exact) < 1e-5
    # Routers may send a token elsewhere in bf16, so this is no tight bound.
    assert error(kept, exact) < 2 * error(load(dense, dtype="bfloat16"), exact) + 0.02


@native
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_experts_in_mxfp4_keep_their_codes_exactly(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_family_checkpoint(tmp_path / "model", "gpt_oss_mxfp4")
    kept = experts_of(load(folder, dtype=dtype))
    assert kept.packed is not None
    packed = [p for each in kept.packed.experts for p in (each.gate_up, each.down)]
    assert {p.code_bits for p in packed} == {4}
    # Of rows in whole panels of 64, as those of gpt-oss are.
    sizes = [(1 + p.structure.is_gated) * p.num_outputs * p.width for p in packed]
    assert [8 * p.num_bytes / n for p, n in zip(packed, sizes, strict=True)] == [4.5] * len(packed)
    x = torch.randn(33, 64).to(getattr(torch, dtype))
    found = kept(x)
    for num_rows in (1, 2, 7, 32):
        assert torch.equal(kept(x[:num_rows]), found[:num_rows])
        assert torch.equal(kept(x[-num_rows:]), found[-num_rows:])
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    widened = experts_of(load(folder, dtype=dtype))
    assert widened.packed is None
    off = (found.double() - widened(x).double()).norm() / widened(x).double().norm()
    assert off < (0.02 if dtype == "bfloat16" else 1e-5)


def experts_of(model: LoadedModel) -> Experts:
    experts = model.decoder.layers[1].feed_forward
    assert isinstance(experts, Experts)
    return experts


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_without_native_products_it_is_widened_to_the_same(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = compressed_tensors("pack-quantized", "group", 4, 32)
    folder = make_tiny_checkpoint(tmp_path / "model", family)
    coded, dense = quantised_pair(folder, form, skip=["sparse_moe.gate"])
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    assert error(load(coded), load(dense)) < 1e-6


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_it_may_be_quantised_again(name: str, tmp_path: Path) -> None:
    coded, dense = pair(tmp_path, gptq())
    assert error(load(coded, quantization=name), load(dense, quantization=name)) < 1e-4


def test_parts_of_different_kinds_become_one_projection(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    coded, dense = quantised_pair(folder, gptq(), skip=["k_proj", "gate_proj", "layers.1."])
    assert error(load(coded), load(dense)) < 1e-5


def test_orders_of_inputs_that_differ_are_widened_and_joined(tmp_path: Path) -> None:
    coded, dense = pair(tmp_path, gptq(desc_act=True))
    path = coded / "model.safetensors"
    tensors = load_file(path)
    plain = load_file(dense / "model.safetensors")
    # Two groups of 32 change places: codes stay, so weights are those of the other scales.
    g_idx = 1 - tensors[f"{Q}.g_idx"]
    scales, zeros = tensors[f"{Q}.scales"], tensors[f"{Q}.qzeros"]
    tensors |= {f"{Q}.g_idx": g_idx, f"{Q}.scales": scales.flip(0), f"{Q}.qzeros": zeros.flip(0)}
    save_file(tensors, path)
    assert not torch.equal(g_idx, tensors[Q.replace("q_proj", "k_proj") + ".g_idx"])
    assert plain[f"{Q}.weight"].shape == (64, 64)
    assert error(load(coded), load(dense)) < 1e-5


def test_the_file_of_older_tools_is_read(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    coded, dense = quantised_pair(folder, gptq(), file="quantize_config.json")
    assert error(load(coded), load(dense)) < 1e-5


@native
def test_auto_is_bf16_for_a_checkpoint_of_fp16(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config))
    coded, dense = quantised_pair(folder, gptq())
    with caplog.at_level(logging.INFO):
        assert load(coded, dtype="auto").dtype is torch.bfloat16
    assert "weights are quantised: gptq (4 bits, groups of 32)" in caplog.text
    assert load(dense, dtype="auto").dtype is torch.float32


def test_a_bias_that_is_not_zero_is_not_dropped(tmp_path: Path) -> None:
    coded, _ = pair(tmp_path, gptq(has_zero_bias=True))
    load(coded)
    edit(coded, **{f"{Q}.bias": torch.eye(1, 64)[0].half()})
    with pytest.raises(CheckpointError, match=r"1 tensors have no use: .*q_proj.bias"):
        load(coded)


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path)


INTS = torch.zeros(8, 64, dtype=torch.int32)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("qweight", INTS[:7], r"q_proj.qweight is I32 \[7, 64\], gptq .* has I32 \[8, 64\] here"),
        ("qweight", INTS.float(), r"q_proj.qweight is F32 \[8, 64\], gptq .* has I32 \[8, 64\]"),
        ("qzeros", INTS, r"q_proj.qzeros is I32 \[8, 64\], gptq .* has I32 \[2, 8\] here"),
        ("scales", torch.ones(1, 64), r"q_proj.scales is F32 \[1, 64\], gptq .* \[2, 64\] here"),
        ("g_idx", INTS[0] + 2, r"q_proj.weight: g_idx names groups 2 to 2, there are 2, from 0"),
        ("g_idx", INTS[0] - 1, r"q_proj.weight: g_idx names groups -1 to -1, there are 2, from 0"),
        ("qzeros", None, r"q_proj.qzeros is missing"),
        ("weight", torch.ones(64, 64), r"1 tensors have no use: .*q_proj.weight"),
    ],
)
def test_tensors_that_contradict_the_configuration(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    coded, _ = pair(tmp_path, gptq())
    edit(coded, **{f"{Q}.{name}": tensor})
    with pytest.raises(CheckpointError, match=message) as caught:
        load(coded)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("block", [None, (16, 16)], ids=["tensor", "blocks"])
@pytest.mark.parametrize("value", [0.0, -0.5, math.inf, math.nan])
def test_scales_of_fp8_that_are_none_are_refused(
    block: tuple[int, int] | None, value: float, tmp_path: Path
) -> None:
    coded, _ = pair(tmp_path, fp8(block))
    name = f"{Q}.weight_scale" + ("_inv" if block else "")
    scales = load_file(coded / "model.safetensors")[name]
    scales.view(-1)[-1] = value
    edit(coded, **{name: scales})
    message = rf"q_proj.weight: its {name.rpartition('.')[2]} has {value:g}, must be finite and ab"
    with pytest.raises(CheckpointError, match=message):
        load(coded)


def test_another_group_size_than_configured_is_refused(tmp_path: Path) -> None:
    coded, _ = pair(tmp_path, awq())
    say_quantised(coded, {**awq().config, "group_size": 16})
    with pytest.raises(CheckpointError, match=r"qzeros is I32 \[2, 8\], awq .* has I32 \[4, 8\]"):
        load(coded)


def test_a_weight_that_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    coded, _ = pair(tmp_path, gptq())
    config = json.loads((coded / "config.json").read_text()) | {"intermediate_size": 94}
    (coded / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"_proj is \[94, 64\], both must be multiples of 8"):
        load(coded)


def test_the_shape_that_is_written_beside_codes_is_checked(tmp_path: Path) -> None:
    coded, _ = pair(tmp_path, compressed_tensors("pack-quantized", "group", 4, 32))
    edit(coded, **{f"{Q}.weight_shape": torch.tensor([64, 2**40])})
    with pytest.raises(CheckpointError, match=r"weight_shape is \[64, 1099511627776\], the conf"):
        load(coded)


def test_codes_that_the_file_only_claims_take_no_memory(tmp_path: Path) -> None:
    """A tensor's bytes are held against its shape before anything is allocated."""
    coded, _ = pair(tmp_path, gptq())
    path = coded / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header[f"{Q}.qweight"]["shape"] = [2**40, 2**20]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(CheckpointError, match=r"q_proj.qweight is I32 \[1099511627776, 1048576\]"):
        load(coded)


def test_weights_without_a_configuration_are_refused(tmp_path: Path) -> None:
    coded, _ = pair(tmp_path, gptq())
    config = json.loads((coded / "config.json").read_text())
    del config["quantization_config"]
    (coded / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"q_proj.weight is missing"):
        load(coded)


def test_families_with_transposed_weights_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 264,
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 4,
        "n_positions": 64,
        "quantization_config": gptq().config,
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"quantization_config 'gptq .* of GPT2"):
        load(folder)


def test_identity_is_the_codes(tmp_path: Path) -> None:
    coded, dense = pair(tmp_path, gptq())
    identity = load(coded).fingerprint
    assert identity != load(dense).fingerprint
    tensors = load_file(coded / "model.safetensors")
    edit(coded, **{f"{Q}.qweight": tensors[f"{Q}.qweight"] ^ 1})
    assert load(coded).fingerprint != identity
