"""What parts of blocks are worth where some layers have windows: longest sequences, and steps.

    PYTHONPATH=tests python benchmarks/engine/windowed_parts.py

A random model of OLMo 3's form with five windowed layers for each that sees all tokens, on one
thread. Both engines have as much memory for KV; one of them keeps whole blocks.
"""

import math
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from support.engine_driver import hash_block, make_request
from support.family_checkpoints import make_family_checkpoint

from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, load_model
from pagoda_engine.models import description

BLOCK_SIZE, NUM_BLOCKS, CHUNK, WINDOW = 16, 512, 256, 512
MAX_LEN = 41_313
NUM_OUTPUT_TOKENS = 64
ROUNDS = 3


def make(model: LoadedModel, *, is_whole: bool, num_blocks: int = NUM_BLOCKS) -> Engine:
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_model_len=MAX_LEN,
        max_num_batched_tokens=CHUNK,
    )
    if is_whole:
        with mock.patch.object(description, "layer_groups", return_value=None):
            return Engine(model, config, hash_block=hash_block)
    return Engine(model, config, hash_block=hash_block)


def longest(engine: Engine) -> int:
    """Return the most tokens that one sequence can have."""
    groups = engine.kv_cache.layout.groups
    num_blocks = NUM_BLOCKS
    if groups is not None:
        num_blocks = groups.longest_table(NUM_BLOCKS, BLOCK_SIZE, CHUNK)
    return num_blocks * BLOCK_SIZE


def run(engine: Engine, num_tokens: int) -> tuple[float, float]:
    """Return the seconds of a prompt, and the least of a decode behind it."""
    prompt = torch.randint(1, 250, (num_tokens,), generator=torch.Generator().manual_seed(1))
    params = SamplingParams(max_tokens=NUM_OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    engine.add(
        make_request(f"{num_tokens}", prompt.tolist(), block_size=BLOCK_SIZE, sampling=params)
    )
    prefill, decode, num_output = 0.0, math.inf, 0
    while engine.has_work():
        started = time.thread_time()
        result = engine.step()
        took = time.thread_time() - started
        if num_output:
            decode = min(decode, took)
        else:
            prefill += took
        num_output += sum(len(output.token_ids) for output in result.outputs)
    assert num_output == NUM_OUTPUT_TOKENS
    return prefill, decode


def main() -> None:
    """Print a few lines."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        layers = [*["sliding_attention"] * 5, "full_attention"] * 2
        make_family_checkpoint(
            Path(folder),
            "olmo3",
            hidden_size=256,
            intermediate_size=512,
            num_attention_heads=8,
            num_key_value_heads=2,
            num_hidden_layers=len(layers),
            layer_types=layers,
            sliding_window=WINDOW,
            max_position_embeddings=MAX_LEN,
            rope_scaling=None,
        )
        model = load_model(Path(folder), EngineConfig(dtype="bfloat16", max_model_len=MAX_LEN))
    print(f"native: {model.decoder.is_native}; {model.kv_layout(BLOCK_SIZE).name}")
    both = {name: longest(make(model, is_whole=name == "whole")) for name in ("whole", "parts")}
    print(f"longest sequence in {NUM_BLOCKS} blocks: {both}")
    num_tokens = both["parts"] - NUM_OUTPUT_TOKENS
    prefill, decode = run(make(model, is_whole=False), num_tokens)
    print(f"a prompt of {num_tokens}: {prefill:.1f} s, a decode behind it {decode * 1e3:.2f} ms")
    for num_tokens in (1024, 8000):
        least: dict[str, tuple[float, float]] = {}
        for _ in range(ROUNDS):
            for name in both:
                found = run(make(model, is_whole=name == "whole"), num_tokens)
                before = least.get(name, (math.inf, math.inf))
                least[name] = min(before[0], found[0]), min(before[1], found[1])
        print(
            f"{num_tokens} tokens: "
            + ", ".join(f"{n} {p:.2f} s, decode {d * 1e3:.2f} ms" for n, (p, d) in least.items())
        )


if __name__ == "__main__":
    main()
