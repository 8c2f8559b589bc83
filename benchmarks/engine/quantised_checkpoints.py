"""Measures checkpoints that are quantised already, on a CPU: error of logits, memory of weights.

    PYTHONPATH=tests python benchmarks/engine/quantised_checkpoints.py

Two models are rounded to each format, nearest and without data (calibrated ones lose less): a
random Llama (hidden size 512, 4 layers), whose attention is peaked, so that errors grow, and the
demo model. Errors are norms of the logits of three prompts: of a format against the unquantised
model in fp32, and for the demo model what is added to it here, against what the codes stand for in
fp32. Bits are those of the projections of its layers, scales included, as they lie in memory in
bf16.
"""

import shutil
import tempfile
from pathlib import Path

import torch
from support.demo import DEMO_MODEL
from support.prompt_logits import prompt_logits
from support.quantised_checkpoints import (
    Format,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    quantised_pair,
)
from support.random_tokens import random_tokens
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_engine.models.feed_forward import DenseFeedForward

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
PROMPTS = [random_tokens(200), random_tokens(90), random_tokens(33)]
FORMATS: dict[str, Format] = {
    "GPTQ 4 bits, sym, 128": gptq(4, 128),
    "GPTQ 4 bits, asym, 128": gptq(4, 128, sym=False),
    "GPTQ 4 bits, sym, 128, desc_act": gptq(4, 128, desc_act=True),
    "GPTQ 8 bits, sym, 128": gptq(8, 128),
    "AWQ 4 bits, 128": awq(128),
    "FP8, scale of a tensor": fp8(),
    "FP8, blocks of 128 x 128": fp8((128, 128)),
    "compressed-tensors, FP8, of an output": compressed_tensors("float-quantized", "channel"),
    "compressed-tensors, int4, 128": compressed_tensors("pack-quantized", "group", 4, 128),
    "compressed-tensors, int8, of an output": compressed_tensors("int-quantized", "channel"),
}


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print("| format | error: random | demo | added: fp32 | bf16 | bf16 widened | bits in bf16 |")
    print("|---|---|---|---|---|---|---|")
    for name, form in FORMATS.items():
        with tempfile.TemporaryDirectory() as parent:
            print(row(name, form, Path(parent)), flush=True)


def row(name: str, form: Format, parent: Path) -> str:
    """Return one line of the table."""
    random = make_tiny_checkpoint(parent / "random", "llama", **SIZES)
    _, dense = quantised_pair(random, form)
    cells = [f"{relative(logits(load(dense)), logits(load(random))):.1%}"]
    demo = Path(shutil.copytree(DEMO_MODEL, parent / "demo"))
    coded, dense = quantised_pair(demo, form)
    exact = logits(load(dense))
    cells.append(f"{relative(exact, logits(load(demo))):.1%}")
    kept = load(coded, "bfloat16")
    for model in (load(coded), kept, load(dense, "bfloat16")):
        cells.append(f"{relative(logits(model), exact):.2g}")
    return f"| {name} | {' | '.join(cells)} | {bits(kept):.1f} |"


def load(folder: Path, dtype: str = "float32") -> LoadedModel:
    """Load a model."""
    return load_model(folder, EngineConfig(dtype=dtype, max_model_len=512))


def logits(model: LoadedModel) -> torch.Tensor:
    """Return those of all prompts."""
    return torch.cat([prompt_logits(model, prompt).float() for prompt in PROMPTS])


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of the error."""
    return float((found - exact).norm() / exact.norm())


def bits(model: LoadedModel) -> float:
    """Return the bits of a weight in the layers' projections."""
    num_bytes = num_weights = 0
    for layer in model.decoder.layers:
        assert isinstance(layer.feed_forward, DenseFeedForward)
        up, down = layer.feed_forward.up, layer.feed_forward.down
        for projection in (layer.attention.qkv, layer.attention.output, up, down):
            packed = projection.packed
            assert packed is not None, "this needs the native operators"
            num_bytes += packed.num_bytes
            num_weights += packed.num_outputs * (1 + packed.is_gated) * packed.width
    return 8 * num_bytes / num_weights


if __name__ == "__main__":
    main()
