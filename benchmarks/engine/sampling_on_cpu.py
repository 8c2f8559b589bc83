"""What it takes a CPU to choose tokens: the native library beside numpy, in turns, one thread.

CPU time of the thread, the least of several turns, in ms. Flat rows are random logits, of which
much is likely; in peaked ones fifty tokens stand out, as in text.

    OMP_NUM_THREADS=1 python benchmarks/engine/sampling_on_cpu.py
"""

import argparse
import time
from collections.abc import Callable

import torch

from pagoda_kernels import plan_sampling, sample_tokens, sampling_column
from pagoda_kernels.sampling.cpu import sample_by_numpy

PARAMETERS: dict[str, dict[str, float]] = {
    "temperature 1": {},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top-k 50": {"top_k": 50},
    "top-k 20, top-p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "min-p 0.05": {"min_p": 0.05},
}
CPU = torch.device("cpu")


def main() -> None:
    """Measure and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[2048, 32_000, 128_256])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for vocab_size in options.vocab_sizes:
        for num_rows in options.rows:
            for kind, logits in (
                ("flat", flat(num_rows, vocab_size)),
                ("peaked", peaked(num_rows, vocab_size)),
            ):
                cells = [
                    f"{name} {measure(logits, parameters, options.turns)}"
                    for name, parameters in PARAMETERS.items()
                ]
                print(f"{num_rows} x {vocab_size} {kind}: " + "; ".join(cells), flush=True)


def flat(num_rows: int, vocab_size: int) -> torch.Tensor:
    """Return bf16 ``[S, V]``."""
    return (2.5 * torch.randn(num_rows, vocab_size)).bfloat16()


def peaked(num_rows: int, vocab_size: int) -> torch.Tensor:
    """Return bf16 ``[S, V]``."""
    logits = 1.5 * torch.randn(num_rows, vocab_size)
    logits[:, :50] += torch.linspace(14, 4, 50)
    return logits.bfloat16()


def measure(logits: torch.Tensor, parameters: dict[str, float], num_turns: int) -> str:
    """Return milliseconds by numpy and by the operator."""
    num_rows = len(logits)
    columns = [sampling_column(seed=seed, **parameters) for seed in range(num_rows)]  # type: ignore[arg-type]
    rows = plan_sampling(columns, range(num_rows), CPU)
    samplers: list[Callable[..., object]] = [sample_by_numpy, sample_tokens]
    least = [float("inf")] * len(samplers)
    for _ in range(num_turns):
        for index, sampler in enumerate(samplers):
            started = time.thread_time()
            sampler(logits, rows)
            least[index] = min(least[index], 1e3 * (time.thread_time() - started))
    return " -> ".join(f"{value:.3f}" for value in least)


if __name__ == "__main__":
    main()
