"""The standard set (`make bench`): four measurements of one machine, into benchmarks/results/.

Repetitions are interleaved and every number carries its spread; ratios are within a repetition.
Run it with nothing else on the machine.

    python benchmarks/serving/standard.py [--model small|demo|FOLDER] [--repetitions 3]
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from driving.load import Load, drive
from running.models import model_folder, vocab_size
from running.processes import memory_bandwidth, running_stack, transformers_baseline
from sections.engine import EngineSection
from sections.gateway import GatewaySection
from sections.prefix import PrefixSection
from sections.section import Section
from sections.topology import TopologySection

from pagoda_cli.bench.provenance import provenance
from pagoda_cli.bench.report import write_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MODEL_CACHE = ROOT / ".pagoda" / "bench-models"
PARTS = ("engine", "topology", "prefix", "gateway")
MIN_REPETITIONS = 3
QUIET_IDLE_PERCENT = 90
# One decode worker; two, as many workers as the last one has; one prefill and one decode worker.
TOPOLOGIES = ("aggregated", "decode=2", "disaggregated")
NEEDS = {"engine": ("aggregated",), "topology": TOPOLOGIES, "prefix": ("disaggregated",)}
WARM_UP = Load(concurrency=8, num_requests=8, prompt_tokens=64, output_tokens=8)


def main() -> None:
    """Measure, print and write."""
    arguments = parse()
    # As an exception, so that the stacks are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    model = model_folder(arguments.model, MODEL_CACHE)
    idle_percent = 100 - psutil.cpu_percent(interval=2)
    say(f"{model}, {arguments.repetitions} repetitions, machine {idle_percent:.0f} % idle before")
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder:
        sections = measure(arguments, model, Path(folder))
    origin = provenance(["python", *sys.argv])
    content: dict[str, Any] = {
        "schema_version": 1,
        "provenance": origin.as_dict(),
        "model": arguments.model,
        "dtype": arguments.dtype,
        "threads_per_worker": arguments.threads,
        "repetitions": arguments.repetitions,
        "seed": arguments.seed,
        "idle_percent_before": idle_percent,
        "duration_seconds": time.monotonic() - started,
        "sections": {name: section.as_dict() for name, section in sections.items()},
    }
    stem = arguments.output / f"{datetime.now(UTC):%Y-%m-%d}-serving"
    write_json(stem.with_suffix(".json"), content)
    page = markdown(content, sections)
    stem.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)
    say(f"wrote {stem}.json and .md")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="small", help="small, demo, or a model folder")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each worker")
    parser.add_argument("--repetitions", type=int, default=MIN_REPETITIONS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.repetitions < MIN_REPETITIONS:
        parser.error(f"--repetitions {arguments.repetitions}: at least {MIN_REPETITIONS}")
    return arguments


def measure(arguments: argparse.Namespace, model: Path, home: Path) -> dict[str, Section]:
    """Run the parts, interleaving what is compared."""
    seeds = range(arguments.seed, arguments.seed + arguments.repetitions)
    sections: dict[str, Section] = {}
    if set(arguments.only) - {"gateway"}:
        sections |= measure_stacks(arguments, model, home, seeds)
    if "gateway" in arguments.only:
        gateway = GatewaySection(model, vocab=vocab_size(model))
        for seed in seeds:
            say(f"gateway alone, repetition {seed - arguments.seed + 1}")
            gateway.repeat(home / f"gateway-{seed}", seed=seed)
        sections["gateway"] = gateway.section()
    return sections


def measure_stacks(
    arguments: argparse.Namespace, model: Path, home: Path, seeds: range
) -> dict[str, Section]:
    """Run the parts that need whole stacks; all are up at once, only one is loaded at a time."""
    options = {"model": model, "num_threads": arguments.threads, "dtype": arguments.dtype}
    chosen = [name for name in PARTS if name in arguments.only and name != "gateway"]
    bandwidth = memory_bandwidth(arguments.threads) if "engine" in chosen else {}
    engine = EngineSection(model, bandwidth, dtype=arguments.dtype)
    topology, prefix = TopologySection(model), PrefixSection(model)
    with contextlib.ExitStack() as exits:
        stacks = {
            name: exits.enter_context(
                running_stack(home / f"stack-{number}", topology=name, **options)
            )
            for number, name in enumerate(TOPOLOGIES)
            if any(name in NEEDS[part] for part in chosen)
        }
        say(f"{', '.join(stacks)} up")
        for stack in stacks.values():
            drive(stack.endpoint, WARM_UP, tokenizer=model / "tokenizer.json", seed=0)
        if "engine" in chosen:
            baseline = exits.enter_context(transformers_baseline(home, **options))
            baseline.ask({"prompts": [[5] * 16] * 8, "num_output_tokens": 8})
        for number, seed in enumerate(seeds, start=1):
            for name in chosen:
                say(f"{name}, repetition {number} of {len(seeds)}")
                if name == "engine":
                    engine.repeat(stacks["aggregated"], baseline, seed=seed)
                elif name == "topology":
                    topology.repeat(list(stacks.values()), seed=100 + seed)
                else:
                    prefix.repeat(stacks["disaggregated"], seed=seed)
    sections: dict[str, EngineSection | TopologySection | PrefixSection] = {
        "engine": engine,
        "topology": topology,
        "prefix": prefix,
    }
    return {name: sections[name].section() for name in chosen}


def markdown(content: dict[str, Any], sections: dict[str, Section]) -> str:
    """Return the page."""
    origin = content["provenance"]
    busy = []
    if content["idle_percent_before"] < QUIET_IDLE_PERCENT:
        busy = ["- **The machine was busy: these numbers are no measurement of pagoda.**"]
    lines = [
        f"# Serving, {origin['time'][:10]}",
        "",
        f"- Machine: {origin['cpu_model']}, {origin['num_cores']} cores, "
        f"{origin['memory_bytes'] / 2**30:.0f} GiB, {origin['system']}, "
        f"{content['idle_percent_before']:.0f} % idle before the start",
        *busy,
        f"- Software: pagoda {origin['pagoda_version']} at {origin['commit'] or 'no commit'}, "
        f"Python {origin['python']}",
        f"- Command: `{' '.join(origin['command'])}` ({content['duration_seconds']:.0f} s)",
        f"- Model: {content['model']}, {content['dtype']}, "
        f"{content['threads_per_worker']} thread(s) per worker",
        f"- Every number: median (least-greatest) of {content['repetitions']} interleaved "
        "repetitions; ratios within a repetition. Compare nothing across machines or days.",
        "",
    ]
    return "\n".join(lines) + "\n" + "\n".join(part.markdown() for part in sections.values())


def say(text: str) -> None:
    """Report progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
