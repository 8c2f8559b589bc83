"""Writes checkpoints that are quantised already, from the formats' public layouts.

Plain numpy, slow, and nothing of the code under test. Each format is a function of a weight
``[N, K]`` float32 that returns the tensors of one projection by suffix, and the weight that they
stand for, in float32.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Quantise = Callable[[np.ndarray], tuple[Tensors, np.ndarray]]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Columns of eight, from the lowest nibble of an int32 to its highest."""


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        config: ``quantization_config``.
        quantise: see above.
    """

    config: Mapping[str, Any]
    quantise: Quantise


def quantised_pair(
    folder: Path, form: Format, *, skip: Sequence[str] = (), file: str = "config.json"
) -> tuple[Path, Path]:
    """Write a folder's model twice: quantised, and with what its codes stand for, dense.

    Args:
        folder: of a dense model in one float32 file.
        form: what the projections of its layers become.
        skip: parts of names of projections that stay as they are.
        file: that says how it is quantised: ``config.json``, or the one of older tools.

    Returns:
        Both folders.
    """
    coded, dense = (folder.with_name(f"{folder.name}-{kind}") for kind in ("coded", "dense"))
    weights = load_file(folder / "model.safetensors")
    packed: Tensors = {}
    plain: Tensors = {}
    for name, tensor in weights.items():
        plain[name] = packed[name] = tensor
        base = name.removesuffix(".weight")
        is_projection = ".layers." in name and tensor.dim() == 2 and not base.endswith("mlp.gate")
        if not is_projection or any(part in name for part in skip):
            continue
        tensors, meant = form.quantise(tensor.float().numpy())
        del packed[name]
        packed |= {f"{base}.{suffix}": each.contiguous() for suffix, each in tensors.items()}
        plain[name] = torch.from_numpy(np.ascontiguousarray(meant))
    for path, chosen in ((coded, packed), (dense, plain)):
        shutil.copytree(folder, path)
        save_file(chosen, path / "model.safetensors")
    say_quantised(coded, form.config, file)
    return coded, dense


def say_quantised(folder: Path, config: Mapping[str, Any], file: str = "config.json") -> None:
    """Write how a folder's weights are quantised."""
    if file != "config.json":
        (folder / file).write_text(json.dumps(config))
        return
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))


def gptq(
    bits: int = 4,
    group_size: int = 32,
    *,
    sym: bool = True,
    desc_act: bool = False,
    version: int = 1,
    has_zero_bias: bool = False,
) -> Format:
    """GPTQ; `version` 1 stores zero points less one."""
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "sym": sym,
        "desc_act": desc_act,
        "damp_percent": 0.01,
        **({"checkpoint_format": "gptq_v2"} if version == 2 else {}),
    }

    def quantise(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        num_rows, width = weight.shape
        group = _group_indices(width, group_size)
        if desc_act:
            group = np.random.default_rng(width).permutation(group)
        codes, scales, zeros = _integers(weight, group, bits, sym=sym)
        meant = (codes - zeros[:, group]).astype(np.float32) * scales[:, group]
        tensors = {
            "qweight": _packed(codes.T, bits, axis=0),
            "qzeros": _packed(zeros.T - (version == 1), bits, axis=1),
            "scales": torch.from_numpy(scales.T.copy()).half(),
            "g_idx": torch.from_numpy(group.astype(np.int32)),
        }
        if has_zero_bias:
            tensors["bias"] = torch.zeros(num_rows, dtype=torch.float16)
        return tensors, meant

    return Format(config, quantise)


def awq(group_size: int = 32) -> Format:
    """AWQ, version gemm."""
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": None,
    }

    def quantise(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        group = _group_indices(weight.shape[1], group_size)
        codes, scales, zeros = _integers(weight, group, 4, sym=False)
        tensors = {
            "qweight": _packed(codes.T, 4, axis=1, order=AWQ_ORDER),
            "qzeros": _packed(zeros.T, 4, axis=1, order=AWQ_ORDER),
            "scales": torch.from_numpy(scales.T.copy()).half(),
        }
        return tensors, (codes - zeros[:, group]).astype(np.float32) * scales[:, group]

    return Format(config, quantise)


def fp8(block: tuple[int, int] | None = None) -> Format:
    """FP8 with a scale of the tensor, or of blocks."""
    config: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    if block is not None:
        config["weight_block_size"] = list(block)
    else:
        config["activation_scheme"] = "static"

    def quantise(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        values, scales, meant = _e4m3(weight, block or weight.shape)
        if block is not None:
            return {"weight": values, "weight_scale_inv": torch.from_numpy(scales)}, meant
        tensors = {"weight": values, "weight_scale": torch.tensor(scales[0, 0])}
        return tensors | {"input_scale": torch.tensor(0.5)}, meant

    return Format(config, quantise)


def compressed_tensors(
    layout: str, strategy: str, bits: int = 8, group_size: int | None = None, *, sym: bool = True
) -> Format:
    """Compressed-tensors: float-quantized, pack-quantized or int-quantized."""
    is_float = layout == "float-quantized"
    weights = {
        "num_bits": bits,
        "type": "float" if is_float else "int",
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": sym,
        "actorder": None,
        **({"block_structure": [128, 128]} if strategy == "block" else {}),
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }

    def floats(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        num_rows, width = weight.shape
        blocks = {"tensor": (num_rows, width), "channel": (1, width), "block": (128, 128)}
        values, scales, meant = _e4m3(weight, blocks[strategy])
        shape = (1,) if strategy == "tensor" else scales.shape
        return {
            "weight": values,
            "weight_scale": torch.from_numpy(scales.reshape(shape)),
            "input_scale": torch.ones(1),
        }, meant

    def integers(weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
        num_rows, width = weight.shape
        group = _group_indices(width, -1 if group_size is None else group_size)
        codes, scales, zeros = _integers(weight, group, bits, sym=sym, dtype="bfloat16")
        meant = (codes - zeros[:, group]).astype(np.float32) * scales[:, group]
        stored = torch.from_numpy(scales).bfloat16()
        if layout == "int-quantized":
            signed = (codes - 2 ** (bits - 1)).astype(np.int8)
            return {"weight": torch.from_numpy(signed), "weight_scale": stored}, meant
        tensors = {
            "weight_packed": _packed(codes, bits, axis=1),
            "weight_scale": stored,
            "weight_shape": torch.tensor([num_rows, width]),
        }
        if not sym:
            tensors["weight_zero_point"] = _packed(zeros, bits, axis=0)
        return tensors, meant

    return Format(config, floats if is_float else integers)


def _group_indices(width: int, group_size: int) -> np.ndarray:
    """Return ``[K]``: the group of each input."""
    return np.arange(width) // (width if group_size == -1 else group_size)


def _integers(
    weight: np.ndarray, group: np.ndarray, bits: int, *, sym: bool, dtype: str = "float16"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes ``[N, K]``, scales ``[N, G]`` that `dtype` holds exactly, zeros ``[N, G]``."""
    num_groups, top = int(group.max()) + 1, 2**bits - 1
    codes = np.zeros(weight.shape, np.int64)
    scales = np.zeros((len(weight), num_groups), np.float32)
    zeros = np.zeros((len(weight), num_groups), np.int64)
    for index in range(num_groups):
        chosen = weight[:, group == index]
        if sym:
            zero = np.full(len(weight), 2 ** (bits - 1))
            scale = np.abs(chosen).max(1) / (2 ** (bits - 1) - 1)
        else:
            low, high = np.minimum(chosen.min(1), 0), np.maximum(chosen.max(1), 0)
            scale = (high - low) / top
            # Zero points below one do not occur: version 1 of GPTQ stores them less one.
            zero = np.clip(np.round(-low / scale), 1, top - 1).astype(np.int64)
        scale = torch.from_numpy(scale).to(getattr(torch, dtype)).float().numpy()
        rounded = np.clip(np.round(chosen / scale[:, None]) + zero[:, None], 0, top)
        codes[:, group == index] = rounded.astype(np.int64)
        scales[:, index], zeros[:, index] = scale, zero
    return codes, scales, zeros


def _packed(
    codes: np.ndarray, bits: int, *, axis: int, order: Sequence[int] | None = None
) -> torch.Tensor:
    """Return int32 words of codes that follow one another along an axis, the first lowest."""
    in_word = 32 // bits
    moved = np.moveaxis(codes, axis, -1)
    moved = np.pad(moved, ((0, 0), (0, -moved.shape[1] % in_word)))
    words = np.zeros((moved.shape[0], moved.shape[1] // in_word), np.uint32)
    for place, which in enumerate(order or range(in_word)):
        words |= moved[:, which::in_word].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(np.moveaxis(words.view(np.int32), -1, axis).copy())


def _e4m3(weight: np.ndarray, block: Sequence[int]) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Return values ``[N, K]`` e4m3, scales of the blocks, and what they stand for."""
    (num_rows, width), (tall, wide) = weight.shape, block
    values = torch.zeros(weight.shape, dtype=torch.float8_e4m3fn)
    scales = np.zeros((-(-num_rows // tall), -(-width // wide)), np.float32)
    meant = np.zeros_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            rows, columns = slice(i * tall, (i + 1) * tall), slice(j * wide, (j + 1) * wide)
            scale = np.float32(np.abs(weight[rows, columns]).max() / 448)
            found = torch.from_numpy(weight[rows, columns] / scale).to(torch.float8_e4m3fn)
            values.view(torch.uint8)[rows, columns] = found.view(torch.uint8)
            scales[i, j] = scale
            meant[rows, columns] = found.float().numpy() * scale
    return values, scales, meant
