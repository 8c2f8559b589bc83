"""Decodes beside what a user would otherwise run in a process: transformers, and peft for adapters.

    OMP_WAIT_POLICY=PASSIVE PYTHONPATH=tests:benchmarks python \
        benchmarks/engine/beside_transformers.py [--threads 1] [--steps 24] [--folder FOLDER]

One random Llama of 428M parameters, the same weights for all: in bf16; as a checkpoint of 4 bits
(compressed-tensors, groups of 128), which transformers needs `compressed-tensors` and `accelerate`
for; and in bf16 with four LoRA adapters of rank 16 on all seven projections, one for each row in
turn, which it needs `peft` for. What is not installed is named and left out.

Steps of one token a row, with 64 tokens before, taken in turns: ours, theirs, ours ... Theirs is a
bare loop of forwards over a cache, without `generate`. Prints tokens/s of the median step, its
ratio, and the ratio of the least.
"""

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from adapters import NUM_ADAPTERS, PROMPT, RANK, random_adapter, running_engine
from support.quantised_checkpoints import compressed_tensors, quantised_pair
from support.tiny_checkpoints import make_tiny_checkpoint
from transformers import AutoModelForCausalLM

from pagoda_engine import Adapter, AdapterSlots, AdapterTable, EngineConfig, LoadedModel, load_model

SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "torch_dtype": "bfloat16",
}
BATCHES = (1, 8)
Step = Callable[[], None]
Adapters = Sequence[Adapter | None]


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--folder", type=Path, help="where models are kept; made at first")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as parent:
        dense, coded = made(options.folder or Path(parent))
        measure("bf16", dense, options.steps)
        if missing := absent("compressed_tensors", "accelerate"):
            print(f"4 bits: left out, not installed: {missing}")
        else:
            measure("4 bits", coded, options.steps)
        if missing := absent("peft"):
            print(f"4 adapters: left out, not installed: {missing}")
        else:
            measure("4 adapters", dense, options.steps, NUM_ADAPTERS)


def absent(*names: str) -> str:
    """Return those that cannot be imported."""
    return ", ".join(name for name in names if importlib.util.find_spec(name) is None)


def made(folder: Path) -> tuple[Path, Path]:
    """Return the folders of the model in bf16 and in 4 bits, made if they are not there."""
    dense, coded = folder / "llama", folder / "llama-coded"
    if not (coded / "model.safetensors").is_file():
        make_tiny_checkpoint(dense, "llama", **SIZES)
        quantised_pair(dense, compressed_tensors("pack-quantized", "group", 4, 128))
    return dense, coded


def measure(name: str, folder: Path, num_steps: int, num_adapters: int = 0) -> None:
    """Take turns, and print a line for each batch."""
    config = EngineConfig(
        num_blocks=512,
        dtype="bfloat16",
        max_model_len=PROMPT + num_steps + 8,
        enable_prefix_caching=False,
    )
    model = load_model(folder, config)
    adapters = [random_adapter(model, seed + 1) for seed in range(num_adapters)]
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    if adapters:
        reference = with_peft(reference, adapters)
    for batch in BATCHES:
        rows: Adapters = [adapters[i % num_adapters] if adapters else None for i in range(batch)]
        steps = {"ours": our_step(model, config, rows), "theirs": their_step(reference, rows)}
        taken: dict[str, list[float]] = {side: [] for side in steps}
        for _ in range(num_steps):
            for side, step in steps.items():
                begin = time.perf_counter()
                step()
                taken[side].append(time.perf_counter() - begin)
        ours, theirs = taken["ours"], taken["theirs"]
        ratio, of_least = (
            statistics.median(theirs) / statistics.median(ours),
            min(theirs) / min(ours),
        )
        speeds = [batch / statistics.median(times) for times in (ours, theirs)]
        print(
            f"{name:12}{batch:2} rows: {speeds[0]:6.1f} tokens/s, theirs {speeds[1]:6.1f}: "
            f"{ratio:.2f} (of the least {of_least:.2f})",
            flush=True,
        )


def our_step(model: LoadedModel, config: EngineConfig, rows: Adapters) -> Step:
    """Return a step of an engine whose prompts are done."""
    slots = AdapterSlots(model.decoder, num_slots=NUM_ADAPTERS, max_rank=RANK)
    engine = running_engine(model, config, AdapterTable(slots), list(rows))

    def step() -> None:
        assert engine.step().stats.num_decode_tokens == len(rows)

    return step


def their_step(model: Any, rows: Adapters) -> Step:
    """Return the same of transformers: a forward of one token a row over what is cached."""
    options: dict[str, Any] = {"use_cache": True}
    if any(rows):
        options["adapter_names"] = [name_of(adapter) for adapter in rows if adapter is not None]
    prompts = torch.tensor([[i + 1] * PROMPT for i in range(len(rows))])
    with torch.inference_mode():
        last = model(input_ids=prompts, logits_to_keep=1, **options)

    @torch.inference_mode()
    def step() -> None:
        nonlocal last
        tokens = last.logits[:, -1].argmax(-1, keepdim=True)
        last = model(input_ids=tokens, past_key_values=last.past_key_values, **options)

    return step


def with_peft(model: Any, adapters: Sequence[Adapter]) -> Any:
    """Return a model with adapters, their weights those of ours."""
    from peft import LoraConfig, get_peft_model  # here: it need not be installed

    targets = sorted({name.rpartition(".")[2] for name in adapters[0].weights})
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets)
    wrapped = get_peft_model(model, config, adapter_name=name_of(adapters[0]))
    for adapter in adapters[1:]:
        wrapped.add_adapter(name_of(adapter), config)
    for adapter in adapters:
        for name, weights in adapter.weights.items():
            layer = wrapped.base_model.model.get_submodule(name)
            for held, given in ((layer.lora_A, weights.a), (layer.lora_B, weights.b)):
                held[name_of(adapter)].weight.data.copy_(given)
    return wrapped.eval().to(torch.bfloat16)


def name_of(adapter: Adapter) -> str:
    """Return how peft calls one."""
    return f"adapter-{adapter.digest.hex()}"


if __name__ == "__main__":
    main()
