"""What 4 tokens of a tenant take in an engine, alone and beside 128 sequences x 500 of another.

The demo model, no network; rounds alone and rounds beside take turns. Beside the flood a request
comes in the middle of a step: half of the step before it counts.

Times are CPU seconds of the thread that steps, so that a busy machine disturbs them less than the
clock on the wall. With --cost nothing is measured: steps are counted as that cost predicts them, by
which the engine shares them too, so every run prints the same. The one below is about what the demo
model takes on a CPU with AVX-512, in ms.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/scheduling/tenants.py
    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/scheduling/tenants.py --cost 1 0.066 0.022
"""

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from support.engine_driver import hash_block, make_request

from pagoda_engine import (
    Engine,
    EngineConfig,
    SamplingParams,
    StepCost,
    StepResult,
    load_model,
)
from pagoda_worker.heartbeat.speed_model import SpeedModel

MODEL = Path(__file__).parents[2] / "demo" / "model"
FLOOD, FLOOD_TOKENS = 128, 500
PROMPT_TOKENS = 15
WARM_STEPS, STEPS_BETWEEN = 20, 6


class Bench:
    """An engine that knows how fast it is, or is told."""

    def __init__(self, cost: StepCost | None) -> None:
        config = EngineConfig(
            num_blocks=20_000, max_num_batched_tokens=512, max_model_len=1024, num_threads=1
        )
        model = load_model(MODEL, config)
        self.engine = Engine(model, config, hash_block=hash_block, clock=time.thread_time)
        self.cost = cost
        if cost is not None:
            self.engine.set_step_cost(cost)
        self.speed = SpeedModel()
        self.numbers = itertools.count()
        self.num_tokens = 0

    def add(self, tenant: bytes, max_tokens: int) -> str:
        """Queue a sequence whose prompt is like no other one's."""
        number = next(self.numbers)
        prompt = [5 + number % 200, 5 + number // 200, *range(5, 5 + PROMPT_TOKENS - 2)]
        request = make_request(
            f"{tenant.decode()}{number}",
            prompt,
            block_size=self.engine.config.block_size,
            cache_root=tenant.ljust(16),
            sampling=SamplingParams(max_tokens=max_tokens, temperature=1.0, ignore_eos=True),
            tenant=tenant,
        )
        self.engine.add(request)
        return request.sequence_id

    def step(self) -> tuple[float, StepResult]:
        """Return what a step took, in ms, and its result."""
        started = time.thread_time()
        result = self.engine.step()
        took = 1e3 * (time.thread_time() - started)
        self.num_tokens += sum(len(output.token_ids) for output in result.outputs)
        stats = result.stats
        if self.cost is not None:
            return self.cost.of(
                num_decodes=stats.num_decode_tokens, num_prefill_tokens=stats.num_prefill_tokens
            ), result
        self.speed.add(stats)
        cost = self.speed.step_cost
        if cost is not None:
            self.engine.set_step_cost(cost)
        return took, result

    def ask(self, num_tokens: int) -> float:
        """Return what it takes until a small request has all its tokens, in ms."""
        sequence_id = self.add(b"small", num_tokens)
        total = 0.0
        while True:
            took, result = self.step()
            total += took
            if any(o.sequence_id == sequence_id and o.finish_reason for o in result.outputs):
                return total

    @contextlib.contextmanager
    def flood(self) -> Iterator[None]:
        """Have the large tenant's sequences run, and end them."""
        names = [self.add(b"large", FLOOD_TOKENS) for _ in range(FLOOD)]
        for _ in range(WARM_STEPS):
            self.step()
        yield
        for name in names:
            self.engine.abort(name)
        self.step()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--requests", type=int, default=5, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cost", type=float, nargs=3, help="base, per decode, per prompt token")
    options = parser.parse_args()
    bench = Bench(StepCost(*options.cost) if options.cost else None)
    for _ in range(4):
        bench.ask(16)
    alone, beside, from_the_middle, worst = [], [], [], []
    flood_steps, flood_tokens, shared, shared_tokens = [], 0, 0.0, 0
    for _ in range(options.rounds):
        alone += [bench.ask(options.tokens) for _ in range(options.requests)]
        with bench.flood():
            bench.num_tokens = 0
            flood_steps += [bench.step()[0] for _ in range(WARM_STEPS)]
            flood_tokens += bench.num_tokens
            for _ in range(options.requests):
                before = statistics.fmean(bench.step()[0] for _ in range(STEPS_BETWEEN))
                bench.num_tokens = 0
                beside.append(bench.ask(options.tokens))
                from_the_middle.append(beside[-1] + before / 2)
                worst.append(beside[-1] + before)
                shared, shared_tokens = shared + beside[-1], shared_tokens + bench.num_tokens
    report("alone", alone)
    for name, values in (
        ("beside", beside),
        ("beside, and half a step before", from_the_middle),
        ("beside, and all of a step before", worst),
    ):
        report(name, values)
        print(f"    / alone: {statistics.median(values) / statistics.median(alone):.2f}")
    print(f"a step of the flood alone: {statistics.median(flood_steps):.1f} ms")
    rates = 1e3 * flood_tokens / sum(flood_steps), 1e3 * shared_tokens / shared
    print(f"tokens/s of all: {rates[0]:.0f} with one tenant, {rates[1]:.0f} with two")


def report(name: str, values: list[float]) -> None:
    """Print the spread of some times."""
    ms = sorted(values)
    print(f"{name:33} p50 {statistics.median(ms):6.1f} ms, from {ms[0]:.1f} to {ms[-1]:.1f}")


if __name__ == "__main__":
    main()
