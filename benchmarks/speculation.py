"""What speculation gains in an engine: tokens per second with it and without, in turns.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/speculation.py [--model FOLDER]

No network. Both engines share the weights and know how long their steps take, as a worker's does.
Rounds alternate between them. Times are CPU seconds of the thread that steps, which does all the
work, and of rounds of as many steps each step's least counts: a busy machine disturbs that less.

`repeats`: greedy output of a prompt that repeats itself, which with the demo model soon does too.
`loops`: the same, of four tokens alone: models of random weights do not repeat themselves else.
`text`: tokens drawn as the model has them, which repeat pairs and little more.
`varied`: tokens drawn at a high temperature, which nothing can foresee: what speculation costs
where it gains nothing. Outputs of both are compared.
"""

import argparse
import itertools
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, load_model
from pagoda_worker.heartbeat.speed_model import SpeedModel

DEMO = Path(__file__).parents[1] / "demo" / "model"
PROMPT_TOKENS = 96
TEMPERATURES = {"repeats": 0.0, "loops": 0.0, "text": 1.0, "varied": 5.0}
TELL_STEPS = 50  # a worker tells its engine four times a second


@dataclass(frozen=True)
class Load:
    """What is asked for."""

    name: str
    batch: int
    sampling: SamplingParams


@dataclass
class Round:
    """What came of it."""

    seconds: list[float]  # of each step
    num_proposed: int
    num_accepted: int
    tokens: list[list[int]]


class Bench:
    """An engine that knows how fast it is."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self.engine = Engine(model, config, hash_block=hash_block, clock=time.thread_time)
        self.speed = SpeedModel()
        self._numbers = itertools.count()

    def run(self, load: Load) -> Round:
        """Serve it once, and time its decode steps."""
        engine, outputs = self.engine, dict[str, list[int]]()
        for i in range(load.batch):
            phrase = [20 + (7 * i + j * j) % 180 for j in range(24)]
            request = make_request(
                f"{next(self._numbers)}",
                (phrase * (PROMPT_TOKENS // 24))[:PROMPT_TOKENS],
                block_size=engine.config.block_size,
                cache_root=bytes([i]) * 16,
                sampling=load.sampling,
            )
            engine.add(request)
            outputs[request.sequence_id] = []
        found = Round([], 0, 0, [])
        while engine.has_work():
            started = time.thread_time()
            result = engine.step()
            took, stats = time.thread_time() - started, result.stats
            self.speed.add(stats)
            for output in result.outputs:
                outputs[output.sequence_id] += output.token_ids
            if not stats.num_prefill_tokens:
                found.seconds.append(took)
                found.num_proposed += stats.num_proposed_tokens
                found.num_accepted += stats.num_accepted_tokens
            if len(found.seconds) % TELL_STEPS == 0 and (cost := self.speed.step_cost) is not None:
                engine.set_step_cost(cost)
        found.tokens = list(outputs.values())
        return found


def main() -> None:
    """Measure and print a line for each load."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--loads", nargs="+", default=[*TEMPERATURES], choices=TEMPERATURES)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--speculative-tokens", type=int, default=EngineConfig().num_speculative_tokens
    )
    options = parser.parse_args()
    config = {
        "num_blocks": 2000,
        "max_num_batched_tokens": 512,
        "max_model_len": PROMPT_TOKENS + options.tokens,
        "num_threads": 1,
        "dtype": options.dtype,
        "num_speculative_tokens": options.speculative_tokens,
    }
    model = load_model(options.model, EngineConfig(**config))
    off = Bench(model, EngineConfig(**config))
    on = Bench(model, EngineConfig(**config, speculation="ngram"))
    print(f"{options.model.name}, {model.dtype}, {options.tokens} tokens, {options.rounds} rounds")
    for name, batch in itertools.product(options.loads, options.batches):
        sampling = SamplingParams(
            max_tokens=options.tokens,
            temperature=TEMPERATURES[name],
            logit_bias=dict.fromkeys(range(30, 34), 60.0) if name == "loops" else {},
            seed=7,
            ignore_eos=True,
        )
        load = Load(name, batch, sampling)
        rounds = [(off.run(load), on.run(load)) for _ in range(options.rounds)]
        assert all(a.tokens == b.tokens for a, b in rounds), "speculation changed an output"
        print(line(load, [a for a, _ in rounds], [b for _, b in rounds], options.tokens))


def line(load: Load, off: list[Round], on: list[Round], num_tokens: int) -> str:
    """Return what one load gave."""
    fastest, faster = least_seconds(off), least_seconds(on)
    total = load.batch * (num_tokens - 1)
    last = on[-1]
    accepted = f"{last.num_accepted} of {last.num_proposed} proposed tokens accepted"
    return (
        f"{load.name:8} batch {load.batch:3}: {total / fastest:7.0f} tokens/s without, "
        f"{total / faster:7.0f} with: {fastest / faster:.3f} times; "
        f"{len(last.seconds)} steps, not {len(off[-1].seconds)}, {accepted}"
    )


def least_seconds(rounds: list[Round]) -> float:
    """Return what the steps took at least, by the rounds of the commonest number of steps."""
    alike = Counter(len(r.seconds) for r in rounds)
    num_steps, _ = alike.most_common(1)[0]
    return sum(
        map(min, zip(*(r.seconds for r in rounds if len(r.seconds) == num_steps), strict=True))
    )


if __name__ == "__main__":
    main()
