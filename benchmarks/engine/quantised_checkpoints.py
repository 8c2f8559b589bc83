"""Measures every format of weights on a CPU: error of logits, perplexity, memory of weights.

    PYTHONPATH=tests:benchmarks python benchmarks/engine/quantised_checkpoints.py [--peers-home DIR]

Two models are rounded to each format, nearest and without data (calibrated ones lose less): a
random Llama (hidden size 512, 4 layers), whose attention is peaked, so that errors grow, and the
demo model. Errors are norms of the logits of three prompts: of a format against the unquantised
model in fp32, and for the demo model what is added to it here, against what the codes stand for in
fp32. Perplexity is the demo model's in fp32, on the dialogues that its training held out (needs
transformers). Bits are those of the projections of its layers, scales included, as they lie in
memory in bf16. Formats that Pagoda makes as it loads have one row each, and so has each kind of
GGUF file, which llama.cpp's converter and quantiser write (docs/howto/compare.md; without
--peers-home they are left out). MXFP4 is that of the experts of a random gpt-oss.
"""

import argparse
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from engine.quantised_weights import held_out_documents
from serving.peers.engines import NotInstalledError, gguf
from support.demo import DEMO_MODEL
from support.family_checkpoints import make_family_checkpoint
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
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
EXPERTS = {"hidden_size": 512, "intermediate_size": 512, "num_experts_per_tok": 2}
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
MADE_AT_LOAD = ("int8", "int4")
GGUF_KINDS = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")


class Errors:
    """What formats are held against: a random model and the demo, in fp32."""

    def __init__(self, folder: Path) -> None:
        """Make the random model in `folder`; the demo is copied beside it."""
        self.random = make_tiny_checkpoint(folder / "random", "llama", **SIZES)
        self.demo = Path(shutil.copytree(DEMO_MODEL, folder / "demo"))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO_MODEL / name, self.random / name)
        self._exact_random, self._exact_demo = logits(load(self.random)), logits(load(self.demo))
        self._documents = held_out_documents()

    def columns(self, random: LoadedModel, demo: LoadedModel) -> list[str]:
        """Return the format's own errors, and the demo model's perplexity."""
        return [
            f"{relative(logits(random), self._exact_random):.1%}",
            f"{relative(logits(demo), self._exact_demo):.1%}",
            f"{self.perplexity(demo):.2f}",
        ]

    def perplexity(self, model: LoadedModel) -> float:
        """Return that of the dialogues that the demo's training held out."""
        nats = num_tokens = 0.0
        for document in self._documents:
            found = prompt_logits(model, document[:-1]).float()
            nats += F.cross_entropy(found, torch.tensor(document[1:]), reduction="sum").item()
            num_tokens += len(document) - 1
        return math.exp(nats / num_tokens)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    home = os.environ.get("PEERS_HOME")
    parser.add_argument("--peers-home", type=Path, default=Path(home) if home else None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| format | error: random | demo | perplexity | added: fp32 | bf16 | bf16 widened | bits |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as parent:
        errors = Errors(Path(parent))
        same = load(errors.random), load(errors.demo)
        print_row("none, in fp32", errors.columns(*same))
        for name, form in FORMATS.items():
            print_row(name, coded_columns(errors, form))
        for name in MADE_AT_LOAD:
            models = (load(folder, name=name) for folder in (errors.random, errors.demo))
            print_row(f"{name}, made at load", errors.columns(*models))
        print_row("MXFP4, of experts", [f"{mxfp4_error(Path(parent)):.1%}"])
        for kind in GGUF_KINDS if options.peers_home else ():
            files = (
                gguf(options.peers_home, folder, Path(parent) / "gguf", kind)
                for folder in (errors.random, errors.demo)
            )
            print_row(f"GGUF {kind}", errors.columns(*map(load, files)))


def print_row(name: str, cells: Sequence[str]) -> None:
    """Print one line of the table."""
    print(f"| {name} | {' | '.join([*cells, *[''] * (7 - len(cells))])} |", flush=True)


def coded_columns(errors: Errors, form: Format) -> list[str]:
    """Return a format's columns."""
    with tempfile.TemporaryDirectory() as parent:
        random, demo = (
            Path(shutil.copytree(folder, Path(parent) / folder.name))
            for folder in (errors.random, errors.demo)
        )
        _, dense_random = quantised_pair(random, form)
        coded, dense = quantised_pair(demo, form)
        meant = load(dense)
        exact = logits(meant)
        cells = errors.columns(load(dense_random), meant)
        kept = load(coded, "bfloat16")
        for model in (load(coded), kept, load(dense, "bfloat16")):
            cells.append(f"{relative(logits(model), exact):.2g}")
        return [*cells, f"{bits(kept):.4g}"]


def mxfp4_error(parent: Path) -> float:
    """Return that of a random gpt-oss whose experts are rounded."""
    dense, coded = (
        logits(load(make_family_checkpoint(parent / family, family, **EXPERTS)))
        for family in ("gpt_oss", "gpt_oss_mxfp4")
    )
    return relative(coded, dense)


def load(folder: Path, dtype: str = "float32", *, name: str = "none") -> LoadedModel:
    """Load a model."""
    return load_model(folder, EngineConfig(dtype=dtype, quantization=name, max_model_len=1024))


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
    try:
        main()
    except NotInstalledError as error:
        sys.exit(str(error))
