"""Writes a model that is much larger than the demo model and mostly says what that says.

    python benchmarks/speculation/wider_twin.py FOLDER [--layers 20] [--width 8192] [--noise 0.3]

For measuring drafts: models of random weights agree with nobody, and small ones leave a draft
nothing to save. The twin has the demo model's layers, their feed-forward widened by zeros, and
further layers of random weights that add a little noise to the residual: so it takes the time of
its size, and the demo model is right about it as often as the noise lets it be.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

DEMO = Path(__file__).parents[2] / "demo" / "model"
SEED = 1623


def widened(tensors: dict[str, torch.Tensor], width: int) -> dict[str, torch.Tensor]:
    """Return the same model with `width` inner features of each feed-forward."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if "gate_proj" in name or "up_proj" in name:
            found[name] = torch.zeros(width, tensor.shape[1], dtype=tensor.dtype)
            found[name][: len(tensor)] = tensor
        elif "down_proj" in name:
            found[name] = torch.zeros(len(tensor), width, dtype=tensor.dtype)
            found[name][:, : tensor.shape[1]] = tensor
    return found


def noisy_layer(like: dict[str, torch.Tensor], noise: float) -> dict[str, torch.Tensor]:
    """Return a layer of random weights, whose two last projections are `noise` times as large."""
    layer = {}
    for name, tensor in like.items():
        if "norm" in name:
            layer[name] = torch.ones_like(tensor)
            continue
        scale = tensor.shape[1] ** -0.5
        if "o_proj" in name or "down_proj" in name:
            scale *= noise
        layer[name] = (torch.randn(tensor.shape) * scale).to(tensor.dtype)
    return layer


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--noise", type=float, default=0.3)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    shutil.copytree(DEMO, options.folder, dirs_exist_ok=True)
    config = json.loads((DEMO / "config.json").read_text())
    num_layers = config["num_hidden_layers"]
    tensors = widened(load_file(DEMO / "model.safetensors"), options.width)
    prefix = "model.layers.0."
    like = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    for i in range(num_layers, options.layers):
        for name, tensor in noisy_layer(like, options.noise).items():
            tensors[name.replace(prefix, f"model.layers.{i}.")] = tensor
    config |= {"num_hidden_layers": options.layers, "intermediate_size": options.width}
    (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, options.folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{sum(t.numel() for t in tensors.values()):,} parameters in {options.folder}")


if __name__ == "__main__":
    main()
