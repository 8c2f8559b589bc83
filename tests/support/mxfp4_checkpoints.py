"""A checkpoint's stacked experts in MXFP4, as gpt-oss is published."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

BLOCK = 32
POSITIVE = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return blocks ``[..., K / 32, 16]`` and scales ``[..., K / 32]`` nearest to ``[..., K]``."""
    groups = weight.float().unflatten(-1, (-1, BLOCK))
    exponents = groups.abs().amax(-1).log2().floor() - 2
    scaled = groups / 2 ** exponents[..., None]
    codes = (scaled.abs()[..., None] - POSITIVE).abs().argmin(-1) + 8 * (scaled < 0)
    low, high = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return (low | high << 4).to(torch.uint8), (exponents + 127).to(torch.uint8)


def pack_experts(folder: Path) -> None:
    """Rewrite a model in float: experts ``[E, inputs, outputs]`` become blocks and scales."""
    path = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(path).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = pack(tensor.transpose(1, 2))
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            tensors[name] = tensor
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (folder / "config.json").write_text(json.dumps(config))


def unpacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's tensors with experts in float again, ``[E, inputs, outputs]``."""
    found = {name: t for name, t in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for name, blocks in tensors.items():
        if not name.endswith("_blocks"):
            continue
        stem = name.removesuffix("_blocks")
        codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).int()
        powers = 2.0 ** (tensors[f"{stem}_scales"].float() - 127)
        values = torch.cat((POSITIVE, -POSITIVE))[codes] * powers[..., None]
        found[stem] = values.flatten(-2).transpose(1, 2)
    return found
