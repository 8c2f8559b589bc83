"""Steps on one thread by an instruction set that a lesser processor has, natively and by torch.

    OMP_NUM_THREADS=1 PYTHONPATH=tests:benchmarks python benchmarks/engine/instruction_sets.py \
        [--set avx2] [--rounds 9] [--formats none int8 int4]

A random Llama of 126M parameters. torch and oneDNN are kept to AVX2 as well, so that both halves of
the table are what such a processor computes. Steps take turns in one process; the least CPU time of
a thread, and the median. The floor of a step is the larger of its bytes over the read bandwidth and
its operations over the rate of fused multiply-adds, both measured here; weights count with the bits
that they have. One quarter of a processor's time belongs to others on a busy machine: compare
columns, which all have lost it.
"""

import os

os.environ.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
os.environ["MKL_ENABLE_INSTRUCTIONS"] = "AVX2"  # all three are read when torch is loaded

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu.harness.ceilings import Ceilings
from gpu.model.roofline import Roofline, StepShape
from quantised_weights import Step
from serving.baselines.memory_bandwidth import measure as measure_bandwidth
from serving.running.models import model_folder

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_kernels.native import library

ROOT = Path(__file__).parents[2]
STEPS = {  # name -> sequences, new tokens, context
    "decode, batch 1": (1, 1, 288),
    "decode, batch 8": (8, 1, 288),
    "decode, batch 32": (32, 1, 288),
    "prompt of 256": (1, 256, 256),
    "512 at the end of 4,000": (1, 512, 4000),
}
BITS = {"none": 16.0, "int8": 8.5, "int4": 4.5}
TURN_SECONDS = 0.2
MULTIPLY_ADDS = """
#include <immintrin.h>
float rate(long turns) {
    __m256 sums[12], x = _mm256_set1_ps(0.5f);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) sums[i] = _mm256_setzero_ps();
    for (long turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) __asm__("vfmadd231ps %1, %1, %0" : "+x"(sums[i]) : "x"(x));
#pragma GCC unroll 12
    for (int i = 1; i < 12; i++) sums[0] = _mm256_add_ps(sums[0], sums[i]);
    return sums[0][0];
}
"""


@dataclass
class Column:
    """One model by one implementation, and the times of its steps."""

    name: str
    format: str
    model: LoadedModel
    steps: dict[str, Step]
    taken: dict[str, list[float]]


def use(instruction_set: str | None) -> None:
    """Let models that are loaded from now on be computed by these instructions, or by torch."""
    flags = library.INSTRUCTION_SETS[instruction_set][0] if instruction_set else frozenset[str]()
    library.processor_flags = lambda: flags
    library.native_library.cache_clear()


def loaded(folder: Path, name: str, quantization: str, dtype: str) -> Column:
    """Load a model and make its steps."""
    config = EngineConfig(
        dtype=dtype, quantization=quantization, device="cpu", num_threads=1, max_model_len=4200
    )
    model = load_model(folder, config)
    steps = {step: Step(model.decoder, model.dtype, *sizes) for step, sizes in STEPS.items()}
    return Column(name, quantization, model, steps, {step: [] for step in STEPS})


def take_turns(columns: Sequence[Column], rounds: int) -> None:
    """Run each step of each column, several times a round."""
    for turn in range(rounds + 1):
        for name in STEPS:
            for column in columns:
                step, end = column.steps[name], time.thread_time() + TURN_SECONDS
                while True:
                    started = time.thread_time()
                    step.run(step.last_rows)
                    now = time.thread_time()
                    if turn:  # the first one finds caches and pages
                        column.taken[name].append(now - started)
                    if now >= end or not turn:
                        break


def multiply_adds_per_second() -> float:
    """Operations of AVX2's fused multiply-adds with nothing to load."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rate.c"
        source.write_text(MULTIPLY_ADDS)
        made = source.with_suffix(".so")
        command = ["cc", "-O2", "-mavx2", "-mfma", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(made), str(source)], check=True)
        rate = ctypes.CDLL(str(made)).rate
        rate.argtypes, rate.restype = [ctypes.c_long], ctypes.c_float
        turns, best = 10_000_000, 0.0
        for _ in range(5):
            started = time.thread_time()
            rate(turns)
            best = max(best, turns * 12 * 16 / (time.thread_time() - started))
    return best


def floor_seconds(column: Column, step: str, ceilings: Ceilings) -> float:
    """Of a step's bytes and operations, whichever takes longer."""
    num_seqs, num_new, context = STEPS[step]
    roofline = Roofline(column.model.description, column.model.dtype)
    shape = StepShape((num_new,) * num_seqs, (context,) * num_seqs)
    num_bytes = roofline.floor_bytes(shape) * BITS[column.format] / 16  # of weights, nearly all
    seconds = num_bytes / ceilings.copy_bytes_per_second
    return max(seconds, roofline.floor_flops(shape) / ceilings.matmul_flops_per_second)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", default="avx2", choices=library.INSTRUCTION_SETS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--formats", nargs="+", default=list(BITS), choices=BITS)
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bandwidth = measure_bandwidth(1)["bytes_per_second"]
    ceilings = Ceilings(bandwidth, multiply_adds_per_second(), 0.0)
    print(f"{bandwidth / 1e9:.1f} GB/s, {ceilings.matmul_flops_per_second / 1e9:.0f} GFLOP/s")
    folder = model_folder("small-8k", ROOT / ".pagoda" / "bench-models")
    use(options.set)
    columns = [
        loaded(folder, f"{options.set}, {name.replace('none', 'bf16')}", name, "bfloat16")
        for name in options.formats
    ]
    if "none" in options.formats:
        columns.append(loaded(folder, f"{options.set}, fp32", "none", "float32"))
    if not options.without_torch:
        use(None)
        columns += [loaded(folder, f"torch, {t}", "none", t) for t in ("bfloat16", "float32")]
    take_turns(columns, options.rounds)
    print("| step | by | ms, least (median) | floor | least to floor |\n|---|---|---|---|---|")
    for step in STEPS:
        for column in columns:
            taken, floor = column.taken[step], floor_seconds(column, step, ceilings)
            least, median = min(taken), statistics.median(taken)
            print(
                f"| {step} | {column.name} | {1e3 * least:.2f} ({1e3 * median:.2f}) "
                f"| {1e3 * floor:.2f} | {least / floor:.2f} |"
            )


if __name__ == "__main__":
    main()
