"""`make soak`: ten minutes of changeable clients; nothing may grow, leak or complain.

python -m chaos.soak [--minutes 10] [--clients 12] [--seed 1]

A fifth of the time warms up: caches fill, pools of threads grow to their size. From then on the
private memory of no process may grow by more than `--max-slope` MiB a minute; descriptors and
threads, counted while idle, must be as many after as before, but for what pools open when needed.
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import aiohttp
import psutil
from support.stack import Stack, running_stack

from chaos.idle import free_blocks, wait_idle
from chaos.prompts import draw_prompts, record
from chaos.runner import ENVIRON, IDLE_SECONDS
from chaos.soak_load import SILENCE_SECONDS, SoakLoad
from chaos.soak_samples import Usages, error_lines
from chaos.system import System

ROOT = Path(__file__).parents[2]
WARM_UP_SHARE = 0.2
NUM_PROMPTS, NUM_TOKENS = 24, 160
MAX_SPARE = 8  # descriptors or threads: pools (the router's of Redis) open what they need, late
SOAK_ENVIRON = {  # budgets that are full after the warm-up: what still grows then is a leak
    "PAGODA_TOPOLOGY": "prefill=1,decode=2",
    "PAGODA_KVSTORE_CPU_BYTES": str(16 << 20),
    "PAGODA_KVSTORE_NVME_BYTES": str(64 << 20),
    "PAGODA_KVSTORE_SEGMENT_BYTES": str(8 << 20),
}


def main() -> int:
    """Run and print; 0 if nothing grew, leaked or complained."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    home = arguments.home / f"{time.strftime('%Y%m%d-%H%M%S')}"
    print(f"seed {arguments.seed}, home {home}", file=sys.stderr, flush=True)
    with running_stack(home, ENVIRON | SOAK_ENVIRON) as stack:
        problems = asyncio.run(soak(stack, arguments))
        children = psutil.Process(stack.process.pid).children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=1)
    problems += [f"left running: pid {process.pid}" for process in alive]
    problems += [f"log: {line}" for line in error_lines(home / "logs")]
    print("\n".join(problems) or "passed")
    return 1 if problems else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--max-slope", type=float, default=1.0, help="MiB a minute")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--home", type=Path, default=ROOT / ".pagoda" / "soak")
    return parser.parse_args()


async def soak(stack: Stack, arguments: argparse.Namespace) -> list[str]:
    """Load the stack; return what is wrong."""
    rng = random.Random(arguments.seed)
    prompts = draw_prompts(NUM_PROMPTS, NUM_TOKENS, rng)
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        system = System(stack, session)
        free_before = await free_blocks(system)
        url, model = stack.url, stack.model
        expected = await record(session, url, model, prompts, silence=SILENCE_SECONDS)
        load = SoakLoad(session, url, model, prompts, expected, rng)
        usages = Usages(system)
        seconds, problems = arguments.minutes * 60, []
        for share, is_sampled in ((WARM_UP_SHARE, False), (1 - WARM_UP_SHARE, True)):
            sampling = asyncio.create_task(usages.sample()) if is_sampled else None
            try:
                await load.run(arguments.clients, seconds * share)
            finally:
                if sampling:
                    sampling.cancel()
            idleness = await wait_idle(system, free_before, IDLE_SECONDS)
            problems += [f"still held: {text}" for text in idleness.held]
            usages.sample_idle()
    outcomes = ", ".join(f"{number} {name}" for name, number in sorted(load.outcomes.items()))
    print(f"{outcomes}; {load.num_early_aborts} aborted before their first token")
    print(table(usages))
    return problems + load.problems + usages.problems + growth(usages, arguments.max_slope)


def growth(usages: Usages, max_slope: float) -> list[str]:
    """What grew, and by how much."""
    found = []
    for name, usage in usages.of.items():
        if (slope := usage.slope_mib_per_minute()) > max_slope:
            found.append(f"{name}: memory grows {slope:.2f} MiB a minute; limit {max_slope:g}")
        for what, counts in (
            ("descriptors", usage.idle_descriptors),
            ("threads", usage.idle_threads),
        ):
            if counts and counts[-1] > counts[0] + MAX_SPARE:
                found.append(f"{name}: {counts[0]} {what} before, {counts[-1]} after")
    return found


def table(usages: Usages) -> str:
    """Return a row for each process."""
    lines = [
        "| process | MiB first | MiB last | MiB/min | descriptors | threads |",
        "|---" * 6 + "|",
    ]
    for name, usage in usages.of.items():
        sizes = [size / 2**20 for _, size in usage.memory] or [0.0]
        descriptors = " -> ".join(map(str, usage.idle_descriptors))
        threads = " -> ".join(map(str, usage.idle_threads))
        memory = f"{sizes[0]:.1f} | {sizes[-1]:.1f} | {usage.slope_mib_per_minute():+.2f}"
        lines.append(f"| {name} | {memory} | {descriptors} | {threads} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
