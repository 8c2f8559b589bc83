r"""Measures what a step costs the host, with a model that computes nothing.

    PYTHONPATH=tests python benchmarks/scheduling/step_host_cost.py [--batch 64] [--steps 300]
    PYTHONPATH=tests python benchmarks/scheduling/step_host_cost.py --batch 256 --tenants 8 \
        --waiting 64
    PYTHONPATH=tests python benchmarks/scheduling/step_host_cost.py --batch 1 --weights-mb 64
    PYTHONPATH=tests python benchmarks/scheduling/step_host_cost.py --batch 256 --model demo/model

The demo model's forward is replaced by a decoder that returns the same logits at once; scheduling,
blocks and their hashes, preparing, launching, sampling (greedy, on the CPU) and committing are the
engine's own. Sequences of several tenants come and go: whoever ends is followed by another prompt,
so steps are of decodes with prompts beside. Times are CPU time of the thread that steps. On a GPU
all but sampling happens while the device computes.

Such a step is the host's alone, and all its parts are printed: at batch 256 scheduler and pool are
about half of it, preparing the inputs (`launch`) a quarter, and the rest is sampling. A real step
is longer by its forward, which is not counted: name its time by --step-ms for the share of it. With
--weights-mb the forward reads as much memory as weights have, so the host's code finds the caches
as a real forward leaves them: a step of one decode then takes some three times as long. With
--model that model's forward is computed, in bf16, and its share is what a real step gives. With
--graphs decodes are prepared as a GPU's are, for the replay of a graph, which computes nothing.

`scheduler and pool` are schedule, commit, what the pool reports, and the load that a worker asks
for after each step; with --step-ms also as shares of steps that take that long.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.engine_driver import make_request

from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, StepCost, load_model
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.device import Forward
from pagoda_kernels import AttentionBatch
from pagoda_runtime.block_hash import hash_block
from pagoda_runtime.process.service import keep_loaded

MODEL = Path(__file__).parents[2] / "demo" / "model"
COST = "that steps are shared by: base, per decode, per prompt token; as of a GPU if not given"
MEASURED = ("schedule", "launch", "sample", "commit")
PARTS = (*MEASURED, "other", "load")
SCHEDULER_PARTS = ("schedule", "commit", "other", "load")


class NoDecoder:
    """Has a decoder's shapes, and computes nothing."""

    takes_last_rows = False  # as where layers are one native call

    def __init__(self, model: LoadedModel, weights_mb: int) -> None:
        self.description = model.description
        self.max_positions = model.decoder.max_positions
        self._weights = torch.ones(weights_mb << 18)
        self._logits = torch.zeros(1, model.vocab_size).index_fill_(1, torch.tensor([5]), 1.0)

    def kv_layout(self, block_size: int, dtype: torch.dtype, scales: str = "") -> KvLayout:
        """Return what the model's KV is; nothing reads it."""
        return self.description.kv_layout(block_size, dtype, scales, self.max_positions)

    def hidden(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: AttentionBatch,
        kv_cache: KvCache,
        logit_rows: torch.Tensor | None,
        **_: Any,
    ) -> torch.Tensor:
        """Return what `logits` needs to know: how many rows. Reads all weights."""
        self._weights.sum()
        return torch.empty(len(token_ids) if logit_rows is None else len(logit_rows), 0)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the same for all rows."""
        return self._logits.expand(len(hidden), -1)

    def forward(self, token_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return what a graph is captured of."""
        return self.logits(token_ids)


class KeptOutputs:
    """Captures: a replay is what the capture gave."""

    def capture(self, forward: Forward) -> Forward:
        """Run the forward once."""
        output = forward()
        return lambda: output


class Clients:
    """Keeps `batch` sequences running and some waiting, of several tenants."""

    def __init__(self, engine: Engine, options: argparse.Namespace) -> None:
        self._engine, self._options = engine, options
        self._rng = random.Random(1)
        self._num_sent = 0
        for number in range(options.batch + options.waiting):
            # Ends are spread evenly from the first step on.
            done = number / options.batch if number < options.batch else 0.0
            self.send(done)

    def send(self, done: float = 0.0) -> None:
        """Queue one more, which has only the rest of its output to say."""
        options, number = self._options, self._num_sent
        self._num_sent += 1
        most = options.output_tokens
        num_tokens = max(1, int((1 - done) * self._rng.randint(most // 2, most * 3 // 2)))
        tenant = f"tenant-{number % options.tenants}".encode()
        request = make_request(
            str(number),
            [self._rng.randrange(10, 250) for _ in range(options.prompt_tokens)],
            block_size=16,
            cache_root=tenant.ljust(16)[:16],
            sampling=SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True),
            tenant=tenant,
        )
        self._engine.add(request)

    def steps(self, num_steps: int) -> Iterator[dict[str, float]]:
        """Yield what the parts of each step took, in microseconds; and its tokens."""
        engine = self._engine
        for _ in range(num_steps):
            started = time.thread_time()
            result = engine.step()
            stepped = time.thread_time()
            engine.load()
            ended = time.thread_time()
            stats = result.stats
            seconds = {name: getattr(stats, f"{name}_seconds") for name in MEASURED}
            inside = sum(seconds.values()) + stats.forward_seconds
            seconds |= {"other": stepped - started - inside, "load": ended - stepped}
            seconds["forward"] = stats.forward_seconds
            row = {name: 1e6 * value for name, value in seconds.items()}
            yield row | {"decodes": stats.num_decode_tokens, "prompt": stats.num_prefill_tokens}
            for output in result.outputs:
                if output.finish_reason is not None:
                    self.send()


def measure(options: argparse.Namespace) -> list[dict[str, float]]:
    """Return a row for each step, once all sequences run."""
    max_len = options.prompt_tokens + 2 * options.output_tokens
    config = EngineConfig(
        num_blocks=options.blocks or options.batch * (max_len // 16 + 2),
        max_num_seqs=options.batch,
        max_num_batched_tokens=options.budget,
        max_model_len=max_len,
        max_num_waiting=options.batch + options.waiting + 1,
    )
    if options.model is not None:
        model = load_model(options.model, replace(config, dtype="bfloat16"))
    else:
        model = load_model(MODEL, config)
        nothing: Any = NoDecoder(model, options.weights_mb)
        model = replace(model, decoder=nothing)
    capture = KeptOutputs() if options.graphs else None
    engine = Engine(
        model, config, hash_block=hash_block, clock=time.thread_time, graph_capture=capture
    )
    engine.capture()
    engine.set_step_cost(StepCost(*options.cost))
    clients = Clients(engine, options)
    for row in clients.steps(10_000):
        if row["decodes"] >= 0.9 * options.batch:
            break
    list(clients.steps(options.output_tokens))
    keep_loaded()
    return list(clients.steps(options.steps))


def main() -> None:
    """Print one line for each part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tenants", type=int, default=1)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=256, help="on average")
    parser.add_argument("--budget", type=int, default=2048, help="tokens of a step at most")
    parser.add_argument("--blocks", type=int, default=0, help="of the pool; 0: enough for all")
    parser.add_argument("--weights-mb", type=int, default=0, help="read by each forward")
    parser.add_argument("--model", type=Path, help="whose forward is computed; default: none is")
    parser.add_argument("--graphs", action="store_true", help="decodes are prepared for replays")
    parser.add_argument("--step-ms", type=float, nargs="*", default=[], help="shares of such steps")
    parser.add_argument("--cost", type=float, nargs=3, default=(6.0, 0.008, 0.02), help=COST)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(options)
    decodes, prompt = (statistics.fmean(row[k] for row in rows) for k in ("decodes", "prompt"))
    print(f"{len(rows)} steps of {decodes:.0f} decodes and {prompt:.0f} prompt tokens on average")
    for name in PARTS:
        report(name, [row[name] for row in rows])
    own = [sum(row[name] for name in SCHEDULER_PARTS) for row in rows]
    report("scheduler and pool", own)
    steps = [sum(row[name] for name in PARTS) for row in rows]
    report("all but the forward", steps)
    if options.model is not None:
        whole = [step + row["forward"] for step, row in zip(steps, rows, strict=True)]
        report("step", whole)
        shares = [100 * part / step for part, step in zip(own, whole, strict=True)]
        print(f"    scheduler and pool: {statistics.median(shares):.2f} % of a step (median)")
    for ms in options.step_ms:
        share = statistics.fmean(own) / 1e3 / ms
        print(f"    of a step of {ms:g} ms: {100 * share:.1f} %")


def report(name: str, values: list[float]) -> None:
    """Print the spread of some times."""
    p50, p99 = statistics.median(values), sorted(values)[int(0.99 * len(values))]
    mean = statistics.fmean(values)
    p10 = sorted(values)[len(values) // 10]
    print(f"{name:20} p10 {p10:6.0f} p50 {p50:6.0f} us, mean {mean:6.0f} us, p99 {p99:6.0f} us")


if __name__ == "__main__":
    main()
