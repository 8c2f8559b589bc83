"""What a grammar costs: compiling, a mask for each token, and time to the first token of servers.

    set -a; . .pagoda/env; set +a                     # of a stack that runs
    python benchmarks/serving/grammar_cost.py --repeats 40 [--beside vllm=http://127.0.0.1:8101/v1]
    python benchmarks/serving/grammar_cost.py --peers-home DIR       # starts Pagoda and vLLM itself

Compiling and masks are measured in this process with the model's own tokenizer; requests by
`grammar_requests.py`. A server beside Pagoda must serve the same model folder: nothing checks that.
"""

import argparse
import contextlib
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from driving.grammar_requests import MAX_TOKENS, measure, schema, table
from peers.engines import NotInstalledError
from peers.servers import candidate
from running.models import model_folder

from pagoda_cli.bench.provenance import provenance
from pagoda_cli.bench.report import write_json
from pagoda_cli.endpoint import Endpoint, resolve_endpoint
from pagoda_gateway.text.grammars import json_rules, whole_grammar
from pagoda_runtime.grammar import GrammarCompiler

ROOT = Path(__file__).parents[2]
MODEL_CACHE = ROOT / ".pagoda" / "bench-models"
QUIET_IDLE_PERCENT = 90


def spread(milliseconds: list[float]) -> str:
    """Return p50, p99 and the largest."""
    ordered = sorted(milliseconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"p50 {statistics.median(ordered):8.3f}  p99 {p99:8.3f}  max {ordered[-1]:8.3f} ms"


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return milliseconds and the result."""
    started = time.perf_counter()
    result = work()
    return 1e3 * (time.perf_counter() - started), result


def measure_grammar(tokenizer: Path, repeats: int, seed: int) -> dict[str, Any]:
    """Print compile and mask times, and return them in ms."""
    compiler = GrammarCompiler(tokenizer.read_text(encoding="utf-8"))
    compiles, masks, num_forced, num_tokens = list[float](), list[float](), 0, 0
    rng = random.Random(seed)
    for salt in range(repeats):
        grammar = whole_grammar(json_rules(schema(salt)))
        milliseconds, compiled = timed(lambda grammar=grammar: compiler.compile(grammar))
        compiles.append(milliseconds)
        matcher = compiled.matcher()
        for _ in range(MAX_TOKENS):
            forced = matcher.compute_ff_tokens()
            matcher.consume_tokens(forced)
            num_forced += len(forced)
            num_tokens += len(forced) + 1
            if matcher.is_stopped():
                break
            milliseconds, bits = timed(matcher.compute_bitmask)
            masks.append(milliseconds)
            allowed = np.flatnonzero(
                np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
            )
            matcher.consume_token(int(rng.choice(allowed.tolist())))
    print(f"compile, cold    {spread(compiles)}  ({len(compiles)} grammars)")
    print(f"mask of a token  {spread(masks)}  ({len(masks)} masks)")
    print(f"forced           {num_forced} of {num_tokens} tokens")
    return {
        "compile_ms": compiles, "mask_ms": masks,
        "num_forced": num_forced, "num_tokens": num_tokens,
    }  # fmt: skip


def endpoints(
    arguments: argparse.Namespace, exits: contextlib.ExitStack, model: Path
) -> dict[str, Endpoint]:
    """Return the servers to ask, by name; those that are started here end with `exits`."""
    found: dict[str, Endpoint] = {}
    if arguments.peers_home is not None:
        home = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="pagoda-bench-")))
        servers = [
            candidate(
                key,
                home=arguments.peers_home,
                model=model,
                cache=MODEL_CACHE,
                threads=len(os.sched_getaffinity(0)),
            )
            for key in ("pagoda-aggregated", "vllm")
        ]
        for server in servers:
            found[server.name] = exits.enter_context(server.start(home / server.key)).endpoint
    elif "OPENAI_BASE_URL" in os.environ:
        found["Pagoda"] = resolve_endpoint()
    for name, _, url in (text.partition("=") for text in arguments.beside):
        found[name] = Endpoint(url.rstrip("/"), os.environ.get("BESIDE_API_KEY", ""), "")
    return found


def named_url(text: str) -> str:
    """Check `NAME=URL`."""
    name, _, url = text.partition("=")
    if not (name and url.startswith(("http://", "https://"))):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write NAME=URL, as vllm=http://127.0.0.1:8101/v1"
        )
    return text


def print_table(rows: list[list[str]]) -> None:
    """Print rows of equally many cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        print("  ".join([*left, *right]))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo", help="demo, small, small-8k, or a model folder")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1, help="another one: cold grammars are new")
    parser.add_argument(
        "--beside", type=named_url, action="append", default=[], metavar="NAME=URL",
        help="a server with the same model, its key in BESIDE_API_KEY; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--peers-home", type=Path, help="start Pagoda and the vLLM in this folder, and stop them"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    model = model_folder(arguments.model, MODEL_CACHE)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {model}, seed {arguments.seed}")
    idle_percent = 100 - psutil.cpu_percent(interval=2)  # servers that have just begun are busy
    alone = measure_grammar(model / "tokenizer.json", arguments.repeats, arguments.seed)
    with contextlib.ExitStack() as exits:
        try:
            asked = endpoints(arguments, exits, model)
        except NotInstalledError as error:
            sys.exit(str(error))
        if not asked:
            return
        found = measure(asked, repeats=arguments.repeats, seed=arguments.seed)
    print_table(table(found))
    for server, kinds in found.items():
        for example in {message for times in kinds.values() for message in times.failures[:1]}:
            print(f"{server} failed: {example}")
    remarks = []
    if idle_percent < QUIET_IDLE_PERCENT:
        remarks.append(f"no measurement: the machine was busy, {idle_percent:.0f} % idle before")
    path = arguments.output / f"{datetime.now(UTC):%Y-%m-%d}-grammar.json"
    content = {
        "schema_version": 1,
        "provenance": provenance(["python", *sys.argv]).as_dict(),
        "model": arguments.model,
        "repeats": arguments.repeats,
        "seed": arguments.seed,
        "idle_percent_before": idle_percent,
        "remarks": remarks,
        "in_process": alone,
        "servers": {
            server: {kind: times.summary() for kind, times in kinds.items()}
            for server, kinds in found.items()
        },
    }
    write_json(path, content)
    print("\n".join([*remarks, f"wrote {path}"]))


if __name__ == "__main__":
    main()
