"""Decodes whose sequences begin with the same blocks, beside as many that share nothing, on a CPU.

    OMP_WAIT_POLICY=PASSIVE PYTHONPATH=tests:benchmarks python \
        benchmarks/engine/shared_prefix.py [--threads 2] [--shared 1024] [--own 64]

A random Llama of 126M parameters in bf16, 8 and 32 sequences, kinds in turns. Medians of steps in
which all decode; the fastest beside them. *Short* has the own tokens alone: what attention to the
others costs is the difference. Nothing else should run meanwhile.
"""

import argparse
import random
import statistics
from pathlib import Path

import torch
from serving.running.models import model_folder
from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, load_model

ROOT = Path(__file__).parents[2]
BLOCK_SIZE = 16
NUM_STEPS = 64
STEP_TOKENS = 512
BATCHES = (8, 32)
REPEATS = 3


def decode_times(
    model: LoadedModel, config: EngineConfig, prompts: list[list[int]], num_shared: int
) -> list[float]:
    """Return the milliseconds of each step in which all sequences decode."""
    engine = Engine(model, config, hash_block=hash_block)

    def add(name: str, prompt: list[int], num_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        engine.add(make_request(name, prompt, block_size=BLOCK_SIZE, sampling=sampling))

    if num_shared:  # its blocks are there when the others come
        add("first", prompts[0][: num_shared + 1], 1)
        while engine.has_work():
            engine.step()
    num_first = sum(map(len, prompts)) // config.max_num_batched_tokens  # until all decode
    for number, prompt in enumerate(prompts):
        add(str(number), prompt, NUM_STEPS + num_first)
    taken = []
    while engine.has_work():
        stats = engine.step().stats
        if stats.num_decode_tokens == len(prompts) and not stats.num_prefill_tokens:
            taken.append(1e3 * (stats.forward_seconds + stats.sample_seconds))
    return taken[2 : NUM_STEPS - 2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shared", type=int, default=1024)
    parser.add_argument("--own", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    length = options.shared + options.own
    most = length + NUM_STEPS + max(BATCHES) * length // STEP_TOKENS
    num_blocks = max(BATCHES) * (most // BLOCK_SIZE + 2)
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=most + BLOCK_SIZE,
        device="cpu",
        dtype="bfloat16",
        num_threads=options.threads,
    )
    model = load_model(model_folder("small-8k", ROOT / ".pagoda" / "bench-models"), config)
    rng = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(10, 8000) for _ in range(count)]

    for batch in BATCHES:
        taken: dict[str, list[float]] = {"short": [], "shared": [], "own": []}
        for _ in range(REPEATS):
            prefix = tokens(options.shared)
            prompts = {
                "short": [tokens(options.own) for _ in range(batch)],
                "shared": [prefix + tokens(options.own) for _ in range(batch)],
                "own": [tokens(length) for _ in range(batch)],
            }
            for kind, asked in prompts.items():
                num_shared = options.shared if kind == "shared" else 0
                taken[kind] += decode_times(model, config, asked, num_shared)
        for kind, times in taken.items():
            print(
                f"batch {batch}, {kind}: {statistics.median(times):.2f} ms (least {min(times):.2f})"
            )


if __name__ == "__main__":
    main()
