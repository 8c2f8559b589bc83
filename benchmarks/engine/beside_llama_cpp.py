"""Steps of the engine beside llama.cpp's, one model in the same formats, on a CPU, in turns.

    PEERS_HOME=DIR PYTHONPATH=tests:benchmarks python benchmarks/engine/beside_llama_cpp.py
        [--threads 1 2] [--repeats 3] [--formats int8 int4 | --files F16 Q8_0 Q6_K Q4_K_M]
        [--set avx2]

With --files both read llama.cpp's file of each kind, Pagoda as docs/howto/gguf.md says for it; else
Pagoda quantises the bf16 weights itself, beside the kind that is as large.

The random Llama of 126M parameters: decodes at batch 1, 8 and 32 and a prompt of 256, each with 256
tokens of context before or after. Forward and logits alone, no sampling, no server. llama.cpp's
sequences share the KV of one prompt, which costs it nothing and saves time here. Its files are made
by its own converter and `llama-quantize`; its numbers are `llama-batched-bench`'s.
docs/howto/compare.md says how to build them; with --set, llama.cpp is one that was built for the
same processor. Prints tokens/s, the median (most) of the turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from quantised_weights import Step
from serving.peers.engines import QUANTISED, NotInstalledError, gguf, installed
from serving.running.models import model_folder

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_kernels.native import library

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".pagoda" / "bench-models"
TYPES = {"none": "BF16", **QUANTISED}
"""Of ours, what llama.cpp calls the format that is as large."""
BATCHES = (1, 8, 32)
CONTEXT = 256
NUM_NEW = 24
SAY = {"F16": "none", "Q8_0": "int8", "Q6_K": "int8", "Q4_K_M": "int4"}
"""`PAGODA_QUANTIZATION` for each kind of file."""
SECONDS = 0.5
"""Of each of our rows in a turn."""

Speeds = dict[str, float]
"""Row -> tokens/s."""


def theirs(home: Path, weights: Path, num_threads: int) -> Speeds:
    """One run of `llama-batched-bench`."""
    bench = installed("llama.cpp", home / "llama-build" / "bin" / "llama-batched-bench")
    length = CONTEXT + NUM_NEW
    command = [str(bench), "-m", str(weights), "-c", str(length * max(BATCHES)), "-b", "2048"]
    command += ["-npp", str(CONTEXT), "-ntg", str(NUM_NEW), "-npl", ",".join(map(str, BATCHES))]
    command += ["-pps", "-t", str(num_threads), "-tb", str(num_threads), "--output-format", "jsonl"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {f"decode, batch {row['pl']}": float(row["speed_tg"]) for row in rows}
    return found | {f"prompt of {CONTEXT}": float(rows[0]["speed_pp"])}


def ours(model: LoadedModel, num_threads: int) -> Speeds:
    """Steps of one format, each for SECONDS; its median."""
    torch.set_num_threads(num_threads)
    middle = CONTEXT + NUM_NEW // 2
    steps = {
        f"decode, batch {batch}": (batch, Step(model.decoder, model.dtype, batch, 1, middle))
        for batch in BATCHES
    }
    prompt = Step(model.decoder, model.dtype, 1, CONTEXT, CONTEXT)
    steps[f"prompt of {CONTEXT}"] = (CONTEXT, prompt)
    found = {}
    for name, (num_tokens, step) in steps.items():
        taken, end = list[float](), time.perf_counter() + SECONDS
        while len(taken) < 5 or time.perf_counter() < end:
            started = time.perf_counter()
            step.run(step.last_rows)
            taken.append(time.perf_counter() - started)
        found[name] = num_tokens / statistics.median(taken[1:])
    return found


def main() -> None:
    """Print a table for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    home = os.environ.get("PEERS_HOME")
    parser.add_argument("--peers-home", type=Path, default=Path(home) if home else None)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--formats", nargs="+", choices=TYPES, default=["int8", "int4"])
    which.add_argument("--files", nargs="+", choices=SAY, default=[])
    parser.add_argument("--set", choices=library.INSTRUCTION_SETS, help="of a lesser processor")
    options = parser.parse_args()
    if options.files and options.peers_home is None:
        parser.error("--files: needs --peers-home, whose llama.cpp makes them")
    if options.set:
        library.processor_flags = lambda: library.INSTRUCTION_SETS[options.set][0]
    folder, home = model_folder("small-8k", CACHE), options.peers_home
    files = {kind: gguf(home, folder, CACHE, kind) for kind in options.files}
    kinds = files or dict.fromkeys(options.formats, folder)
    peers = {name: gguf(home, folder, CACHE, TYPES.get(name, name)) for name in kinds if home}
    models = {}
    for name, weights in kinds.items():
        quantization = SAY[name] if files else name
        config = EngineConfig(dtype="bfloat16", quantization=quantization, device="cpu")
        models[name] = load_model(weights, config)
    for num_threads in options.threads:
        speeds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for _ in range(options.repeats):
            for name, model in models.items():
                for row, speed in ours(model, num_threads).items():
                    speeds[row, name, "ours"].append(speed)
                if home is None:
                    continue
                for row, speed in theirs(home, peers[name], num_threads).items():
                    speeds[row, name, "theirs"].append(speed)
        print(f"{num_threads} thread(s)")
        print("| step | format | tokens/s | llama.cpp | ratio |")
        print("|---|---|---|---|---|")
        for row, name, whose in speeds:
            if whose == "ours":
                print(line_of(row, name, speeds))
        sys.stdout.flush()


def line_of(row: str, name: str, speeds: dict[tuple[str, str, str], list[float]]) -> str:
    """One row of the table."""
    mine, peers = speeds[row, name, "ours"], speeds.get((row, name, "theirs"))
    line = f"| {row} | {name} | {statistics.median(mine):.0f} ({max(mine):.0f}) "
    if peers is None:
        return line + "| | |"
    ratio = statistics.median(mine) / statistics.median(peers)
    their = f"{TYPES.get(name, name)}: {statistics.median(peers):.0f} ({max(peers):.0f})"
    return line + f"| {their} | {ratio:.2f} |"


if __name__ == "__main__":
    try:
        main()
    except NotInstalledError as error:
        sys.exit(str(error))
