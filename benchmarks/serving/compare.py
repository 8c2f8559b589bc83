"""Pagoda beside the engines people install: same model, same prompts, in turns, one at a time.

    PEERS_HOME=DIR python benchmarks/serving/compare.py [--repeats 3] [--quantization int8]

Each repetition starts every server once, alone on the machine, and runs all loads against it; the
order turns with the repetitions. docs/howto/compare.md says how to install the engines and how to
read what comes out. Writes benchmarks/results/<date>-compare.{json,md,svg} after each repetition.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
from driving.load import Load, drive
from peers.comparison import MIN_REPEATS, Comparison, Run
from peers.engines import KV_BYTES, QUANTISED, NotInstalledError
from peers.plot import svg
from peers.servers import SERVERS, Candidate, Server, candidate
from peers.watch import Watch
from running.models import model_folder

from pagoda_cli.bench.errors import BenchError
from pagoda_cli.bench.provenance import Provenance, provenance
from pagoda_cli.bench.report import write_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MODEL_CACHE = ROOT / ".pagoda" / "bench-models"
LOADS = {
    "c=1": Load(concurrency=1, num_requests=8, prompt_tokens=256, output_tokens=64),
    "c=8": Load(concurrency=8, num_requests=32, prompt_tokens=256, output_tokens=64),
    "c=32": Load(concurrency=32, num_requests=96, prompt_tokens=256, output_tokens=64),
    "prefix": Load(
        concurrency=8, num_requests=64, prompt_tokens=64, output_tokens=32, prefix_tokens=1024
    ),
}
# Batches of this size and prompts of this length were seen before anything is measured.
WARM_UP = (
    Load(concurrency=8, num_requests=8, prompt_tokens=256, output_tokens=8),
    Load(concurrency=32, num_requests=32, prompt_tokens=64, output_tokens=8),
)


def main() -> None:
    """Measure, print and write."""
    arguments = parse()
    # As an exception, so that the servers are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    origin = provenance(["python", *sys.argv])
    model = model_folder(arguments.model, MODEL_CACHE)
    comparison = Comparison(repeats=arguments.repeats, fraction=arguments.fraction)
    candidates = found(arguments, model, comparison)
    say(f"{model}, machine {100 - psutil.cpu_percent(interval=2):.0f} % idle before")
    started = time.monotonic()
    for number in range(arguments.repeats):
        turn = number % max(1, len(candidates))
        for one in [*candidates[turn:], *candidates[:turn]]:
            measure_server(one, arguments, model, comparison, number)
        write(comparison, arguments, origin, time.monotonic() - started)
    print((stem(arguments, origin).with_suffix(".md")).read_text(encoding="utf-8"))
    say(f"wrote {stem(arguments, origin)}.json, .md and .svg")
    if comparison.problems or not comparison.loads():
        sys.exit(1)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    home = os.environ.get("PEERS_HOME")
    parser.add_argument("--peers-home", type=Path, default=Path(home) if home else None)
    parser.add_argument("--model", default="small-8k", help="small-8k, small, demo, or a folder")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--repeats", type=int, default=MIN_REPEATS, help=f"below {MIN_REPEATS}: a trial, marked so"
    )
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="of each load's requests; below 1: a trial"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quantization", choices=["none", *QUANTISED], default="none")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats {arguments.repeats}: at least 1")
    if not 0 < arguments.fraction <= 1:
        parser.error(f"--fraction {arguments.fraction}: above 0, at most 1")
    if arguments.threads < 1:
        parser.error(f"--threads {arguments.threads}: at least 1")
    return arguments


def found(arguments: argparse.Namespace, model: Path, comparison: Comparison) -> list[Candidate]:
    """Return the servers that can run here; one line for each that cannot."""
    candidates = []
    for key in arguments.servers:
        try:
            one = candidate(
                key,
                home=arguments.peers_home,
                model=model,
                cache=MODEL_CACHE,
                threads=arguments.threads,
                quantization=arguments.quantization,
            )
        except NotInstalledError as error:
            say(str(error))
            continue
        except RuntimeError as error:
            comparison.problems.append(str(error))
            say(str(error))
            continue
        candidates.append(one)
    return candidates


def measure_server(
    one: Candidate,
    arguments: argparse.Namespace,
    model: Path,
    comparison: Comparison,
    number: int,
) -> None:
    """Start a server, run all loads against it and stop it. What fails is noted, and said."""
    prefix = f"{one.name}, repetition {number + 1} of {arguments.repeats}"
    begun = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="pagoda-compare-") as folder,
            one.start(Path(folder)) as server,
        ):
            say(f"{prefix}: up after {time.monotonic() - begun:.0f} s")
            tokenizer = model / "tokenizer.json"
            for index, load in enumerate(WARM_UP):
                drive_server(server, load, tokenizer, seed=-1 - index)
            for name in arguments.loads:
                load = LOADS[name]
                num_requests = max(load.concurrency, round(arguments.fraction * load.num_requests))
                load = replace(load, num_requests=num_requests)
                # Every server gets the same prompts; no load gets those of another.
                place = arguments.seed + number * len(LOADS) + list(LOADS).index(name)
                run = drive_server(server, load, tokenizer, seed=place)
                comparison.add(name, load, server.name, number, run, is_ours=one.is_pagoda)
                say(f"{prefix}, {name}: {summary(run)}")
    except (RuntimeError, BenchError, psutil.Error) as error:
        comparison.problems.append(f"{prefix}: {error}")
        say(f"{prefix}: {error}")


def drive_server(server: Server, load: Load, tokenizer: Path, *, seed: int) -> Run:
    """Run one load under watch."""
    with Watch(server.pid) as watch:
        results = drive(
            server.endpoint, load, tokenizer=tokenizer, seed=seed, keep_alive=server.keep_alive
        )
    assert watch.seen is not None  # it is set when nothing was raised
    return Run(results, watch.seen)


def summary(run: Run) -> str:
    """Return one line for the terminal."""
    ttft, tpot = run.results.ttft_ms, run.results.tpot_ms
    latencies = f"TTFT {ttft.p50:.0f} ms, TPOT {tpot.p50:.1f} ms" if ttft and tpot else "no answer"
    loud = " (LOUD)" if run.seen.is_loud else ""
    return (
        f"{run.results.output_tokens_per_second:.1f} tok/s, {latencies}, "
        f"{run.seen.peak_memory_bytes / 2**20:.0f} MiB, "
        f"{run.results.num_failed} failed, foreign CPU {run.seen.foreign_percent:.1f} %{loud}"
    )


def stem(arguments: argparse.Namespace, origin: Provenance) -> Path:
    """Return the path of the results without its ending."""
    suffix = "" if arguments.quantization == "none" else f"-{arguments.quantization}"
    return Path(arguments.output / f"{origin.time[:10]}-compare{suffix}")


def write(
    comparison: Comparison, arguments: argparse.Namespace, origin: Provenance, seconds: float
) -> None:
    """Write what is known so far."""
    path = stem(arguments, origin)
    content = {
        "schema_version": 1,
        "provenance": origin.as_dict(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": arguments.model,
        "quantization": arguments.quantization,
        "threads": arguments.threads,
        "kv_bytes": KV_BYTES,
        "repeats": arguments.repeats,
        "fraction": arguments.fraction,
        "seed": arguments.seed,
        "duration_seconds": seconds,
        **comparison.as_dict(),
    }
    write_json(path.with_suffix(".json"), content)
    title = f"Pagoda beside other engines, {origin.cpu_model}, {origin.time[:10]}"
    path.with_suffix(".svg").write_text(svg(comparison, title), encoding="utf-8")
    path.with_suffix(".md").write_text(
        page(comparison, arguments, origin, seconds), encoding="utf-8"
    )


def page(
    comparison: Comparison, arguments: argparse.Namespace, origin: Provenance, seconds: float
) -> str:
    """Return the results as Markdown."""
    remarks = comparison.remarks()
    lines = [
        f"# Pagoda beside other engines, {origin.time[:10]}",
        "",
        *([f"- **No measurement: {'; '.join(remarks)}.**"] if remarks else []),
        f"- Machine: {origin.cpu_model}, {origin.num_cores} cores, "
        f"{origin.memory_bytes / 2**30:.0f} GiB, {origin.system}",
        f"- Software: pagoda {origin.pagoda_version} at {origin.commit or 'no commit'}",
        f"- Command: `{' '.join(origin.command)}` ({seconds:.0f} s)",
        f"- Model: {arguments.model}, {weights(arguments)}, "
        f"{arguments.threads} thread(s) and {KV_BYTES >> 30} GiB of KV cache for each server",
        f"- Every number: median (least-greatest) of {arguments.repeats} repetition(s). *To best "
        "peer*: over the best of the others in the same repetition; more is better for tok/s, less "
        "for all else. Compare nothing across machines or days.",
        *(f"- **{problem.splitlines()[0][:200]}** ..." for problem in comparison.problems),
        "",
    ]
    tables = "\n".join(section.markdown() for section in comparison.sections())
    return "\n".join(lines) + f"\n![all of it]({stem(arguments, origin).name}.svg)\n\n" + tables


def weights(arguments: argparse.Namespace) -> str:
    """Return what the servers compute with."""
    if arguments.quantization == "none":
        return "bf16 (OpenVINO: exported as fp16)"
    return f"{arguments.quantization} (llama.cpp: {QUANTISED[arguments.quantization]})"


def say(line: str) -> None:
    """Report progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
