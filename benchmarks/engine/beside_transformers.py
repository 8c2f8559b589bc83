"""Decodes beside what a user would otherwise run in a process: transformers, and peft for adapters.

    OMP_WAIT_POLICY=PASSIVE PYTHONPATH=tests:benchmarks python \
        benchmarks/engine/beside_transformers.py [--threads 1] [--steps 24] [--cases CASE ...]

One random Llama of 428M parameters, the same weights for all: in bf16; in bf16 with LoRA adapters
of rank 16 on all seven projections, one for each row in turn, which transformers needs `peft` for
(what is not installed is named and left out); and quantised. Of quantised weights transformers gets
what the codes stand for, in bf16: that is what compressed-tensors makes of its files before the
first forward, what MXFP4 is widened to without a GPU, and what a user takes where a format has no
kernels for a CPU at all. MXFP4 is that of a random gpt-oss of 409M parameters, experts in 4 bits.

Steps of one token a row, with 64 tokens before, taken in turns: ours, theirs, ours ... Theirs is a
bare loop of forwards over a cache, without `generate`. Prints tokens/s of the median step, its
ratio, and the ratio of the least.
"""

import argparse
import contextlib
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from adapters import PROMPT, RANK, random_adapter, running_engine
from safetensors.torch import load_file, save_file
from support.family_checkpoints import make_family_checkpoint
from support.mxfp4_checkpoints import unpacked
from support.quantised_checkpoints import (
    Format,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    quantised_pair,
)
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
WEIGHTS = "model.safetensors"
EXPERTS: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
}
FORMATS: dict[str, Format] = {
    "GPTQ 4 bits": gptq(4, 128),
    "AWQ 4 bits": awq(128),
    "GPTQ 8 bits": gptq(8, 128),
    "FP8 blocks": fp8((128, 128)),
    "compressed-tensors int4": compressed_tensors("pack-quantized", "group", 4, 128),
    "compressed-tensors int8": compressed_tensors("int-quantized", "channel"),
}
ADAPTERS = {"1 adapter": 1, "4 adapters": 4, "8 adapters": 8}
MXFP4 = "MXFP4 experts"
CASES = ("bf16", *ADAPTERS, *FORMATS, MXFP4)
Step = Callable[[], None]
Adapters = Sequence[Adapter | None]


def main() -> None:
    """Print one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as parent:
        dense = make_tiny_checkpoint(Path(parent) / "llama", "llama", **SIZES)
        for case in options.cases:
            if case in FORMATS:
                with pair_of(dense, FORMATS[case]) as (coded, meant):
                    measure(case, coded, meant, options.steps)
            elif case == MXFP4:
                measure(case, *experts(Path(parent)), options.steps)
            elif case in ADAPTERS and importlib.util.find_spec("peft") is None:
                print(f"{case}: left out, not installed: peft")
            else:
                measure(case, dense, dense, options.steps, ADAPTERS.get(case, 0))


@contextlib.contextmanager
def pair_of(folder: Path, form: Format) -> Iterator[tuple[Path, Path]]:
    """Yield the folders of the model as codes and as what they stand for."""
    coded, meant = quantised_pair(folder, form)
    try:
        yield coded, meant
    finally:
        for path in (coded, meant):
            shutil.rmtree(path)


def experts(parent: Path) -> tuple[Path, Path]:
    """Return the folders of a random gpt-oss, published and widened."""
    coded = make_family_checkpoint(parent / "coded", "gpt_oss_mxfp4", **EXPERTS)
    meant = Path(shutil.copytree(coded, parent / "meant"))
    save_file(
        {name: t.contiguous() for name, t in unpacked(load_file(meant / WEIGHTS)).items()},
        meant / WEIGHTS,
        {"format": "pt"},
    )
    config = json.loads((meant / "config.json").read_text())
    del config["quantization_config"]
    (meant / "config.json").write_text(json.dumps(config))
    return coded, meant


def measure(
    name: str, folder: Path, their_folder: Path, num_steps: int, num_adapters: int = 0
) -> None:
    """Take turns, and print a line for each batch."""
    config = EngineConfig(
        num_blocks=512,
        dtype="bfloat16",
        max_model_len=PROMPT + num_steps + 8,
        enable_prefix_caching=False,
    )
    model = load_model(folder, config)
    adapters = [random_adapter(model, seed + 1) for seed in range(num_adapters)]
    reference = AutoModelForCausalLM.from_pretrained(their_folder, dtype=torch.bfloat16).eval()
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
            f"{name:24}{batch:2} rows: {speeds[0]:6.1f} tokens/s, theirs {speeds[1]:6.1f}: "
            f"{ratio:.2f} (of the least {of_least:.2f})",
            flush=True,
        )


def our_step(model: LoadedModel, config: EngineConfig, rows: Adapters) -> Step:
    """Return a step of an engine whose prompts are done."""
    slots = AdapterSlots(model.decoder, num_slots=max(ADAPTERS.values()), max_rank=RANK)
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
