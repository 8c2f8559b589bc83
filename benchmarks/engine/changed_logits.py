"""What biases and penalties add to a step on a CPU, and to sampling of large vocabularies.

    OMP_NUM_THREADS=1 PYTHONPATH=tests:benchmarks python benchmarks/engine/changed_logits.py

Steps of 64 decodes, of the demo model (2,048 tokens) and a random one of 126M parameters (8,192):
engines that differ in their sequences' sampling alone are stepped in turns. Then `sample` alone, of
random logits. CPU time of one thread; the least and the median of the turns, in ms.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from serving.running.models import model_folder
from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, SamplingParams, load_model
from pagoda_engine.sampling import SampleRow, SamplingState, count_tokens, plan_rows, sample

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
NUM_ROWS, NUM_BIASES, NUM_SEEN = 64, 4096, 300
MAX_LEN = 400


def samplings(vocab_size: int, temperature: float) -> dict[str, list[SamplingParams]]:
    """Return what is measured: parameters for each row, the plain ones first."""
    rng = random.Random(1)

    def biases(num: int) -> dict[int, float]:
        return {token_id: rng.uniform(-1, 1) for token_id in rng.sample(range(vocab_size), num)}

    def rows(**kinds: Callable[[], object]) -> list[SamplingParams]:
        fields = [{name: make() for name, make in kinds.items()} for _ in range(NUM_ROWS)]
        common = {"max_tokens": MAX_LEN, "temperature": temperature, "ignore_eos": True}
        return [SamplingParams(**{**common, "seed": i, **own}) for i, own in enumerate(fields)]

    most = min(NUM_BIASES, vocab_size)
    return {
        "plain": rows(),
        "one bias": rows(logit_bias=lambda: biases(1)),
        f"{most} biases": rows(logit_bias=lambda: biases(most)),
        "penalties": rows(presence_penalty=lambda: 0.5, repetition_penalty=lambda: 1.1),
    }


def in_turns(works: Mapping[str, Callable[[], object]], num_turns: int) -> str:
    """Return the time of each and its share above the first."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(num_turns):
        for name, work in works.items():
            started = time.thread_time()
            work()
            took[name].append(1e3 * (time.thread_time() - started))
    cells, first = [], None
    for name, values in took.items():
        pair = min(values), statistics.median(values)
        first = first or pair
        shares = [f"{now / then - 1:+.1%}" for now, then in zip(pair, first, strict=True)]
        added = "" if pair is first else f" ({shares[0]}, {shares[1]})"
        cells.append(f"{name} {pair[0]:.2f}, {pair[1]:.2f}{added}")
    return "; ".join(cells)


def steps(folder: Path, num_turns: int, temperature: float) -> str:
    """Measure whole steps."""
    config = EngineConfig(
        num_blocks=NUM_ROWS * MAX_LEN // 16 + NUM_ROWS,
        max_num_seqs=NUM_ROWS,
        max_num_batched_tokens=8192,
        max_model_len=MAX_LEN,
        num_threads=1,
    )
    model = load_model(folder, config)
    rng, works = random.Random(2), {}
    prompts = [[rng.randrange(10, 256) for _ in range(16)] for _ in range(NUM_ROWS)]
    for name, rows in samplings(model.vocab_size, temperature).items():
        engine = Engine(model, config, hash_block=hash_block)
        for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            engine.add(make_request(str(i), prompt, block_size=config.block_size, sampling=row))
        for _ in range(5):
            engine.step()
        works[name] = engine.step
    return in_turns(works, num_turns)


def samples(vocab_size: int, num_turns: int, temperature: float) -> str:
    """Measure what follows the forward."""
    logits = (2.5 * torch.randn(NUM_ROWS, vocab_size)).bfloat16()
    rng, works = random.Random(3), {}
    for name, params in samplings(vocab_size, temperature).items():
        rows = []
        for own in params:
            state = SamplingState(own, eos_token_ids=())
            if state.has_penalties:
                seen = rng.choices(range(vocab_size), k=NUM_SEEN)
                state.counts = count_tokens(own, seen[:200], seen[200:], vocab_size, CPU)
            rows.append(SampleRow(state, 100))
        works[name] = lambda rows=rows: sample(logits, plan_rows(rows, CPU))
    return in_turns(works, num_turns)


def main() -> None:
    """Measure and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[2048, 8192, 128_256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    random_model = model_folder("small-8k", ROOT / ".pagoda" / "bench-models")
    for temperature in (0.0, 1.0):
        name = f"temperature {temperature:g}"
        for folder, turns in (
            (ROOT / "demo" / "model", options.turns),
            (random_model, max(1, options.turns // 10)),
        ):
            print(f"steps, {folder.name}, {name}: {steps(folder, turns, temperature)}", flush=True)
        for size in options.vocab_sizes:
            found = samples(size, max(9, options.turns // 10), temperature)
            print(f"sample, {size}, {name}: {found}", flush=True)


if __name__ == "__main__":
    main()
