"""What a grammar costs: compiling, a mask for each token, and time to the first token of a stack.

    set -a; . .pagoda/env; set +a                     # of a stack that runs
    python benchmarks/serving/grammar_cost.py --repeats 40

Compiling and masks are measured in this process with the model's own tokenizer. Requests go to the
stack one at a time, the kinds in turn, so that all of them see the same machine.
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from pagoda_gateway.text.grammars import json_rules, whole_grammar
from pagoda_runtime.grammar import GrammarCompiler

MAX_TOKENS = 64
QUESTION = [{"role": "user", "content": "What news from the battle, good my lord?"}]


def schema(salt: int = 0) -> dict[str, Any]:
    """Return a schema of usual size; another salt makes it another grammar."""
    return {
        "type": "object",
        "title": f"news {salt}",
        "properties": {
            "mood": {"enum": ["merry", "grave", f"mood{salt}"]},
            "losses": {"type": "integer", "minimum": 0, "maximum": 99999},
            "names": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "place": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
                "required": ["city", "day"],
                "additionalProperties": False,
            },
        },
        "required": ["mood", "losses", "names", "place"],
        "additionalProperties": False,
    }


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


def measure_grammar(tokenizer: Path, repeats: int, seed: int) -> None:
    """Print compile and mask times."""
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


def kinds(repeat: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the kinds of requests of one round."""
    for name, salt in (("grammar, cached", 0), ("grammar, cold", repeat + 1)):
        wanted = {"name": "news", "schema": schema(salt)}
        yield name, {"response_format": {"type": "json_schema", "json_schema": wanted}}
    yield "no grammar", {}


def ask(client: httpx.Client, model: str, fields: dict[str, Any], seed: int) -> tuple[float, float]:
    """Return ms to the first content, and ms for each further token."""
    body = {
        "model": model, "messages": QUESTION, "max_tokens": MAX_TOKENS, "seed": seed,
        "stream": True, "stream_options": {"include_usage": True}, **fields,
    }  # fmt: skip
    started = time.perf_counter()
    first, num_tokens = 0.0, 0
    with client.stream("POST", "/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            first = first or time.perf_counter()
            num_tokens = (chunk.get("usage") or {}).get("completion_tokens", num_tokens)
    ended = time.perf_counter()
    return 1e3 * (first - started), 1e3 * (ended - first) / max(1, num_tokens - 1)


def measure_stack(repeats: int) -> None:
    """Print times of a running stack."""
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    model = os.environ["PAGODA_MODEL_NAME"]
    firsts: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    with httpx.Client(
        base_url=os.environ["OPENAI_BASE_URL"], headers=headers, timeout=60
    ) as client:
        for repeat in range(repeats + 1):
            for name, fields in kinds(repeat):
                first, other = ask(client, model, fields, seed=repeat)
                if repeat:  # the first round warms caches
                    firsts.setdefault(name, []).append(first)
                    others.setdefault(name, []).append(other)
    for name in firsts:
        print(f"TTFT, {name:16} {spread(firsts[name])}")
    for name in others:
        print(f"per token, {name:16} {spread(others[name])}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenizer", type=Path, default=Path("demo/model/tokenizer.json"))
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, seed {arguments.seed}")
    measure_grammar(arguments.tokenizer, arguments.repeats, arguments.seed)
    if "OPENAI_BASE_URL" in os.environ:
        measure_stack(arguments.repeats)


if __name__ == "__main__":
    main()
