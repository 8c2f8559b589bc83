"""What the scheduler does for others, beside the same engine without it, as ratios of one run.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/scheduling/beside_fifo.py [--rounds 5]

The demo model, no network. `shared`: requests say whose they are, and the engine is told what its
steps take, as by a worker. `fifo`: all are one tenant's, so that who comes first is served first,
and prompt tokens seem to take nothing, so that a chunk is all that a step has room for. Rounds of
the two take turns, of the same prompts in the same order; each round's tokens are compared.

`small`: until 4 tokens are there of a tenant that comes while 128 sequences of another one run, and
64 more wait. `gap`: the time between two tokens of 8 streams (p99) while prompts of 1,900 tokens
are computed. `all`: all tokens of a round, prompts too, in a second.

Times are CPU seconds of the thread that steps, so a busy machine disturbs them less than the clock
on the wall. A ratio is the median of the rounds' ratios; the least and the most are beside it.
"""

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, StepCost, load_model
from pagoda_worker.heartbeat.speed_model import SpeedModel

MODEL = Path(__file__).parents[2] / "demo" / "model"
SEATS, FLOOD, FLOOD_TOKENS, NUM_SMALL = 128, 192, 60, 6
STREAMS, STREAM_TOKENS, LONG_PROMPT, NUM_LONG = 8, 120, 1900, 3
FREE_PROMPTS = StepCost(per_prefill_token=1e-9)
TELL_STEPS = 32  # a worker tells its engine four times a second


@dataclass
class Round:
    """What came of one round."""

    small: list[float] = field(default_factory=list)  # seconds
    gaps: list[float] = field(default_factory=list)
    rate: float = 0.0  # tokens/s
    tokens: dict[str, list[int]] = field(default_factory=dict)


class Bench:
    """An engine with the scheduler, or as if without it."""

    def __init__(self, model: LoadedModel, *, is_fifo: bool) -> None:
        config = EngineConfig(
            num_blocks=4000,
            max_num_seqs=SEATS,
            max_num_batched_tokens=512,
            max_model_len=2048,
            num_threads=1,
            max_num_waiting=FLOOD,
        )
        self._is_fifo = is_fifo
        self._engine = Engine(model, config, hash_block=hash_block, clock=time.thread_time)
        if is_fifo:
            self._engine.set_step_cost(FREE_PROMPTS)
        self._speed, self._num_steps = SpeedModel(), 0
        self._rounds = itertools.count()

    def run(self) -> Round:
        """Serve all of it once."""
        found, number = Round(), next(self._rounds)
        used, num_tokens = 0.0, 0
        for phase in (self._small, self._gaps):
            seconds, tokens = phase(found, number)
            used, num_tokens = used + seconds, num_tokens + tokens
        found.rate = num_tokens / used
        return found

    def _small(self, found: Round, number: int) -> tuple[float, int]:
        """Let a small tenant ask beside a flood."""
        for i in range(FLOOD):
            self._add(found, f"flood{i}", b"large", 15, FLOOD_TOKENS, number)
        now, num_tokens, num_sent = 0.0, 0, 0
        asked, name = 0.0, ""
        while self._engine.has_work():
            if not name and num_sent < NUM_SMALL and now > 0:
                name, asked = f"small{num_sent}", now
                num_sent += 1
                self._add(found, name, b"small", 15, 4, number)
            took, new, _ = self._step(found)
            now, num_tokens = now + took, num_tokens + new
            if name and len(found.tokens[name]) == 4:
                found.small.append(now - asked)
                name = ""
        return now, num_tokens

    def _gaps(self, found: Round, number: int) -> tuple[float, int]:
        """Let streams run beside long prompts."""
        for i in range(STREAMS):
            self._add(found, f"stream{i}", b"streams", 15, STREAM_TOKENS, number)
        now, num_tokens, num_sent = 0.0, 0, 0
        latest: dict[str, float] = {}  # stream -> when its latest token came
        long = ""  # that is computed
        while self._engine.has_work():
            if not long and num_sent < NUM_LONG and len(latest) == STREAMS:
                long = f"long{num_sent}"
                num_sent += 1
                self._add(found, long, b"streams", LONG_PROMPT, 1, number)
            took, new, names = self._step(found)
            now, num_tokens = now + took, num_tokens + new
            for name in names:
                if name == long:
                    continue
                if long and name in latest:
                    found.gaps.append(now - latest[name])
                latest[name] = now
            if long in names:
                long = ""
        return now, num_tokens

    def _add(
        self, found: Round, name: str, tenant: bytes, num_prompt: int, num_output: int, number: int
    ) -> None:
        seed = sum(name.encode()) * 31 + number
        prompt = [5 + seed % 200, 5 + number % 200, *(5 + (seed * i) % 211 for i in range(2, 2000))]
        self._engine.add(
            make_request(
                name,
                prompt[:num_prompt],
                block_size=self._engine.config.block_size,
                cache_root=bytes([number % 256]) * 16,
                sampling=SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True),
                tenant=b"all" if self._is_fifo else tenant,
            )
        )
        found.tokens[name] = []

    def _step(self, found: Round) -> tuple[float, int, list[str]]:
        """Return what a step took, its tokens, and whose outputs it had."""
        started = time.thread_time()
        result = self._engine.step()
        took, stats = time.thread_time() - started, result.stats
        for output in result.outputs:
            found.tokens[output.sequence_id] += output.token_ids
        self._speed.add(stats)
        self._num_steps += 1
        if not self._is_fifo and self._num_steps % TELL_STEPS == 0:
            cost = self._speed.step_cost
            if cost is not None:
                self._engine.set_step_cost(cost)
        num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        return took, num_tokens, [output.sequence_id for output in result.outputs]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = load_model(MODEL, EngineConfig(max_model_len=2048, num_threads=1))
    shared, fifo = Bench(model, is_fifo=False), Bench(model, is_fifo=True)
    rounds = [(shared.run(), fifo.run()) for _ in range(1 + options.rounds)][1:]
    for ours, other in rounds:
        both = ours.tokens.keys() & other.tokens.keys()
        changed = [name for name in both if ours.tokens[name] != other.tokens[name]]
        assert not changed, f"the scheduler changed the outputs of {changed}"
    for name, unit, value in (
        ("small", "ms", lambda r: 1e3 * statistics.median(r.small)),
        ("gap", "ms", lambda r: 1e3 * float(np.percentile(r.gaps, 99))),
        ("all", "tokens/s", lambda r: r.rate),
    ):
        pairs = [(value(ours), value(other)) for ours, other in rounds]
        ratios = sorted(ours / other for ours, other in pairs)
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        print(
            f"{name:6} shared {medians[0]:8.1f}, fifo {medians[1]:8.1f} {unit}; ratio "
            f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
