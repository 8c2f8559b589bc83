"""What 4 tokens of a tenant take in an engine, alone and beside 128 sequences x 500 of another.

The demo model, no network. Times are CPU seconds of the thread that steps, so that a busy machine
disturbs them less than the clock on the wall. Beside the flood a request comes in the middle of a
step: half of the step before it counts.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/tenants_in_engine.py
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, SamplingParams, StepResult, load_model
from pagoda_worker.heartbeat.speed_model import SpeedModel

MODEL = Path(__file__).parent.parent / "demo" / "model"
FLOOD, FLOOD_TOKENS = 128, 500
PROMPT_TOKENS = 15
WARM_STEPS, STEPS_BETWEEN = 20, 6


class Bench:
    """An engine that knows how fast it is."""

    def __init__(self) -> None:
        config = EngineConfig(
            num_blocks=20_000, max_num_batched_tokens=512, max_model_len=1024, num_threads=1
        )
        model = load_model(MODEL, config)
        self.engine = Engine(model, config, hash_block=hash_block, clock=time.thread_time)
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
        """Return the seconds of a step and its result."""
        started = time.thread_time()
        result = self.engine.step()
        seconds = time.thread_time() - started
        self.speed.add(result.stats)
        self.num_tokens += sum(len(output.token_ids) for output in result.outputs)
        cost = self.speed.step_cost
        if cost is not None:
            self.engine.set_step_cost(cost)
        return seconds, result

    def ask(self, num_tokens: int) -> float:
        """Return the seconds until a small request has all its tokens."""
        sequence_id = self.add(b"small", num_tokens)
        seconds = 0.0
        while True:
            took, result = self.step()
            seconds += took
            if any(o.sequence_id == sequence_id and o.finish_reason for o in result.outputs):
                return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    bench = Bench()
    for _ in range(4):
        bench.ask(16)
    alone = [bench.ask(options.tokens) for _ in range(options.requests)]
    for _ in range(FLOOD):
        bench.add(b"large", FLOOD_TOKENS)
    for _ in range(WARM_STEPS):
        bench.step()
    bench.num_tokens = 0
    steps = [bench.step()[0] for _ in range(WARM_STEPS)]
    rate_alone = bench.num_tokens / sum(steps)
    beside, from_the_middle = [], []
    num_tokens, seconds = 0, 0.0
    for _ in range(options.requests):
        before = statistics.fmean(bench.step()[0] for _ in range(STEPS_BETWEEN))
        bench.num_tokens = 0
        beside.append(bench.ask(options.tokens))
        from_the_middle.append(beside[-1] + before / 2)
        num_tokens, seconds = num_tokens + bench.num_tokens, seconds + beside[-1]
    report("alone", alone)
    report("beside", beside)
    report("beside, and half a step before", from_the_middle)
    for name, values in (("beside", beside), ("beside, and half a step", from_the_middle)):
        print(f"{name} / alone: {statistics.median(values) / statistics.median(alone):.2f}")
    print(f"a step of the flood alone: {1e3 * statistics.median(steps):.1f} ms")
    print(f"tokens/s of all: {rate_alone:.0f} with one tenant, {num_tokens / seconds:.0f} with two")


def report(name: str, seconds: list[float]) -> None:
    """Print the spread of some times."""
    ms = sorted(1e3 * value for value in seconds)
    print(f"{name:31} p50 {statistics.median(ms):6.1f} ms, from {ms[0]:.1f} to {ms[-1]:.1f}")


if __name__ == "__main__":
    main()
