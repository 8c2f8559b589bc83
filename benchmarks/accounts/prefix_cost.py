"""What the memory of prefixes costs a gateway for each request, by the length of its prompt.

    PYTHONPATH=tests OMP_NUM_THREADS=1 .venv/bin/python benchmarks/accounts/prefix_cost.py

`arrive` is on the event loop before the first worker is asked, `settle` on it after the last token;
`explain` is in a thread after the last token. Beside them `hash`, which every prompt costs anyway.
Two kinds of requests come in turns: another question behind the same half, and the same prompt with
another value near its beginning. `--cases N` scores the classes of N labelled cases each instead.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from support.prefix_cases.prompts import template
from support.prefix_cases.scores import scored

from pagoda_gateway.accounts.prefixes.explanation import CacheKey, Compared, Outcome, explain
from pagoda_gateway.accounts.prefixes.memory import PrefixMemory
from pagoda_gateway.accounts.prefixes.outline import Outline, Part
from pagoda_runtime.block_hash import hash_prompt

LENGTHS = (256, 4096, 32768)
BLOCK_SIZE = 16
KEY = CacheKey("m", b"i" * 16, "", b"r" * 16)
OUTLINE = Outline.of([Part.of("system", "x" * 500), Part.of("user", "y" * 100)])


class Costs:
    """Milliseconds of each part, of processor time: what else runs does not count."""

    def __init__(self) -> None:
        self._ms: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Measure a block."""
        started = time.thread_time()
        yield
        self._ms[part].append(1000 * (time.thread_time() - started))

    def print(self) -> None:
        """Print p50 and p99 of each part."""
        for part, ms in self._ms.items():
            p50, p99 = np.percentile(ms, (50, 99))
            print(f"  {part:26} p50 {p50:7.3f} ms  p99 {p99:7.3f} ms")


def measure(num_tokens: int, num_pairs: int, rng: random.Random) -> Costs:
    """Serve requests of so many tokens, one after the other."""
    tokenizer = template()[1]
    memory, costs = PrefixMemory(max_bytes=64 << 20, max_tenant_bytes=8 << 20), Costs()
    base = drawn(rng, num_tokens)
    for _ in range(num_pairs):
        asked = base[: num_tokens // 2] + drawn(rng, num_tokens - num_tokens // 2)
        changed = base[:5] + drawn(rng, 4) + base[9:]
        for kind, token_ids in (("another question", tuple(asked)), ("a value", tuple(changed))):
            with costs.of("hash"):
                hashes = hash_prompt(KEY.root, token_ids, BLOCK_SIZE)
            with costs.of("arrive"):
                arrival = memory.arrive("t", KEY, token_ids, hashes, OUTLINE, lambda: True)
            with costs.of("settle"):
                memory.settle("t", arrival, hashes, is_computed=True)
            known = BLOCK_SIZE * min(arrival.num_known_blocks, (num_tokens - 1) // BLOCK_SIZE)
            with costs.of(f"explain, {kind}"):
                explain(
                    Compared(KEY, np.asarray(token_ids, np.uint32), OUTLINE),
                    memory.relatives("t", arrival),
                    Outcome(known, known, known, 0, BLOCK_SIZE),
                    lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
                )
    return costs


def drawn(rng: random.Random, num: int) -> list[int]:
    """Return so many token ids."""
    return [rng.randrange(300, 1900) for _ in range(num)]


def main() -> None:
    """Measure or score, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    if options.cases:
        print(scored(options.seed, options.cases).table())
        return
    for num_tokens in LENGTHS:
        print(f"{num_tokens} tokens")
        measure(num_tokens, options.pairs, random.Random(options.seed)).print()


if __name__ == "__main__":
    main()
