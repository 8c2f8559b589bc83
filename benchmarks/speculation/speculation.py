"""What speculation gains in an engine: tokens per second with it and without, in turns.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/speculation/speculation.py [--model FOLDER]
        [--draft FOLDER]

No network. All engines share the weights and know how long their steps take, as a worker's does:
one without, another one without, whose ratio to the first says what ratios are worth (`control`),
one whose sequences propose from themselves (`own`), one from their tenant's outputs too (`all`),
one from a draft model beside that (`draft`), where one is named. Rounds alternate between them.
Times are CPU seconds of the thread that steps, which does all the work, and of rounds of as many
steps each step's least counts: a busy machine disturbs that less. Where rounds differ in their
steps the median of the rounds' ratios counts. Two engines alike differ by up to a percent, by where
their memory lies: of several `--copies` the geometric mean counts.

`repeats`: greedy output of a prompt that repeats itself, which with the demo model soon does too.
`loops`: the same, of four tokens alone: models of random weights do not repeat themselves else.
`text`: tokens drawn as the model has them, which repeat pairs and little more.
`varied`: tokens drawn at a high temperature, which nothing can foresee: what speculation costs
where it gains nothing.
`again`: greedy output of one of four prompts, which the tenant has asked before.
`alike`: greedy output of prompts that all end alike and begin differently.
`json`: the same, bound to a JSON schema, of which the grammar leaves only values open.
`plays`: greedy output of prompts from the plays that the demo model was trained on; `drawn`: the
same at temperature 1. What a draft model is for.
In `repeats` and `loops` each round is of new tenants, in the others all are of the same ones.
Outputs of all engines are compared.
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from support.engine_driver import hash_block, make_request
from tokenizers import Tokenizer

from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, load_model
from pagoda_worker.grammars import Grammars
from pagoda_worker.heartbeat.speed_model import SpeedModel

DEMO = Path(__file__).parents[2] / "demo" / "model"
PROMPT_TOKENS = 96
TEMPERATURES = {
    "repeats": 0.0, "loops": 0.0, "text": 1.0, "varied": 5.0, "again": 0.0, "alike": 0.0,
    "json": 0.0, "plays": 0.0, "drawn": 1.0,
}  # fmt: skip
PLAYS = DEMO.parent / "tinyshakespeare.txt"
ENGINES = {
    "off": {}, "control": {}, "own": {"speculation_output_bytes": 0}, "all": {}, "draft": {},
}  # fmt: skip
WITHOUT = ("off", "control")
NUM_QUESTIONS = 4
SCHEMA = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "x-guidance": {"whitespace_flexible": False},
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "kind": {"enum": ["castle", "ship", "crown", "sword"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 9999},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        },
        "required": ["name", "kind", "size", "tags"],
        "additionalProperties": False,
    },
}
JSON = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
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
    draft_seconds: float = 0.0  # of all steps, those with prompts too


class Bench:
    """An engine that knows how fast it is."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        grammars: Grammars,
        plays: list[int],
        draft: LoadedModel | None,
    ) -> None:
        self._grammars = grammars
        self._plays = plays
        self.engine = Engine(
            model, config, hash_block=hash_block, clock=time.thread_time, draft=draft
        )
        if self.engine.drafter is not None:
            self.engine.drafter.warm_up()
        self.speed = SpeedModel()
        self._numbers = itertools.count()

    def run(self, load: Load, number: int) -> Round:
        """Serve it for the so manieth time, and time its decode steps."""
        engine, outputs = self.engine, dict[str, list[int]]()
        is_new_tenant = load.name in ("repeats", "loops")
        for i in range(load.batch):
            request = make_request(
                f"{next(self._numbers)}",
                prompt(load.name, i, number, self._plays),
                block_size=engine.config.block_size,
                cache_root=bytes([i]) * 16,
                tenant=f"{load} {number if is_new_tenant else 0}".encode(),
                token_mask=asyncio.run(self._grammars.mask(JSON)) if load.name == "json" else None,
                sampling=replace(load.sampling, seed=load.sampling.seed + number),
            )
            engine.add(request)
            outputs[request.sequence_id] = []
        found = Round([], 0, 0, [])
        while engine.has_work():
            started = time.thread_time()
            result = engine.step()
            took, stats = time.thread_time() - started, result.stats
            self.speed.add(stats)
            found.draft_seconds += stats.draft_seconds
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


def prompt(name: str, i: int, number: int, plays: list[int]) -> list[int]:
    """Return what sequence `i` of a round asks."""
    if name in ("plays", "drawn"):
        start = random.Random(f"{i} {number}").randrange(len(plays) - PROMPT_TOKENS)
        return plays[start : start + PROMPT_TOKENS]
    which = i if name != "again" else (i + number) % NUM_QUESTIONS
    phrase = [20 + (7 * which + j * j) % 180 for j in range(24)]
    tokens = (phrase * (PROMPT_TOKENS // 24))[:PROMPT_TOKENS]
    if name in ("alike", "json"):
        rng = random.Random(f"{i} {number}")
        tokens = [20 + rng.randrange(180) for _ in range(24)] + (
            [20 + j * j % 180 for j in range(72)]
        )
    return tokens


def main() -> None:
    """Measure and print a line for each load."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--draft", type=Path, help="folder of a draft model")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1, help="engines of each kind, see above")
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
    grammars = Grammars.load(
        options.model, vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids
    )
    draft = None if options.draft is None else load_model(options.draft, EngineConfig(**config))
    plays = held_out_tokens(options.model) if {"plays", "drawn"} & {*options.loads} else []
    copies = [
        {
            name: Bench(
                model,
                EngineConfig(**config, **values, speculation="off" if name in WITHOUT else "ngram"),
                grammars,
                plays,
                draft if name == "draft" else None,
            )
            for name, values in ENGINES.items()
            if name != "draft" or draft is not None
        }
        for _ in range(options.copies)
    ]
    print(f"{options.model.name}, {model.dtype}, {options.tokens} tokens, {options.rounds} rounds")
    for name, batch in itertools.product(options.loads, options.batches):
        sampling = SamplingParams(
            max_tokens=options.tokens,
            temperature=TEMPERATURES[name],
            logit_bias=dict.fromkeys(range(30, 34), 60.0) if name == "loops" else {},
            seed=7,
            ignore_eos=name != "json",
        )
        load = Load(name, batch, sampling)
        kept: list[dict[str, list[Round]]] = [{name: [] for name in c} for c in copies]
        # What is asked again must have been asked before.
        num_first = NUM_QUESTIONS if name == "again" else 0
        for number in range(num_first + options.rounds):
            for benches, rounds in zip(copies, kept, strict=True):
                found = {engine: bench.run(load, number) for engine, bench in benches.items()}
                outputs = [of_one.tokens for of_one in found.values()]
                assert all(o == outputs[0] for o in outputs), "speculation changed an output"
                for engine, of_one in found.items() if number >= num_first else ():
                    rounds[engine].append(of_one)
        print(line(load, kept), flush=True)


def held_out_tokens(folder: Path) -> list[int]:
    """Return the end of the plays, which the demo model was not trained on."""
    text = PLAYS.read_text()
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text[-len(text) // 15 :])
    return list(encoding.ids)


def line(load: Load, copies: list[dict[str, list[Round]]]) -> str:
    """Return what one load gave, by copies of the engines."""
    rounds = {name: [r for copy in copies for r in copy[name]] for name in copies[0]}
    speed = max(sum(map(len, r.tokens)) / sum(r.seconds) for r in rounds["off"])
    found = [f"{load.name:8} batch {load.batch:3}: {speed:7.0f} tokens/s"]
    for name in [name for name in rounds if name != "off"]:
        last = rounds[name][-1]
        ratios = [ratio(copy["off"], copy[name]) for copy in copies]
        found.append(f"{name} {statistics.geometric_mean(ratios):.3f} times")
        if len(ratios) > 1:
            found[-1] += f" ({min(ratios):.3f} to {max(ratios):.3f})"
        if name not in WITHOUT:
            accepted = f"{last.num_accepted} of {last.num_proposed} accepted"
            found[-1] += f", {len(last.seconds)} steps, {accepted}"
        if drafted := sum(r.draft_seconds for r in rounds[name]):
            share = drafted / sum(sum(r.seconds) for r in rounds[name])
            found[-1] += f", {100 * share:.2f} % of the time drafting"
    return "; ".join(found)


def ratio(off: list[Round], on: list[Round]) -> float:
    """Return how many times as fast rounds are."""
    if len({len(r.seconds) for r in on}) == len({len(r.seconds) for r in off}) == 1:
        return least_seconds(off) / least_seconds(on)
    pairs = zip(off, on, strict=True)
    return statistics.median(sum(a.seconds) / sum(b.seconds) for a, b in pairs)


def least_seconds(rounds: list[Round]) -> float:
    """Return what the steps took at least, of rounds of as many steps."""
    return sum(map(min, zip(*(r.seconds for r in rounds), strict=True)))


if __name__ == "__main__":
    main()
