"""What a beam search costs in the engine, and what it would cost above it, one request a token.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/engine/beam_search.py [--model FOLDER]

No network. CPU seconds of the thread that steps, the least of some rounds in turns:

`outputs`: as many ordinary outputs of one prompt, drawn: what rows cost without a search.
`search`: the engine's.
`requests`: the same search outside it: each token of each beam is a request with `max_tokens: 1`
that finds the full blocks of its tokens cached. Its messages and hashes would come on top.

Both searches are compared.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from support.engine_driver import hash_block, make_request

from pagoda_engine import (
    BeamSearchParams,
    Engine,
    EngineConfig,
    LoadedModel,
    SamplingParams,
    SequenceOutput,
    load_model,
)
from pagoda_engine.sampling.beam_search import BeamSearch

DEMO = Path(__file__).parents[2] / "demo" / "model"
BLOCK_SIZE = 16
MAX_TOKENS = 64
ROUNDS = 4
Outputs = list[tuple[int, ...]]


def run(
    engine: Engine, prompts: list[list[int]], sampling: list[SamplingParams]
) -> list[SequenceOutput]:
    """Return all outputs, in the order of their steps."""
    for i, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
        engine.add(make_request(str(i), prompt, block_size=BLOCK_SIZE, sampling=params))
    outputs: list[SequenceOutput] = []
    while engine.has_work():
        outputs.extend(engine.step().outputs)
    return outputs


def draw(engine: Engine, prompt: list[int], width: int) -> Outputs:
    """Return nothing that is compared."""
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=seed) for seed in range(width)
    ]
    run(engine, [prompt] * width, params)
    return []


def search(engine: Engine, prompt: list[int], width: int) -> Outputs:
    """Search in the engine."""
    params = SamplingParams(
        max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, beam_search=BeamSearchParams(width)
    )
    *_, output = run(engine, [prompt], [params])  # before it one that says that the search begins
    return [hypothesis.token_ids for hypothesis in output.hypotheses]


def search_by_requests(engine: Engine, prompt: list[int], width: int) -> Outputs:
    """Search above the engine."""
    beams = BeamSearch(
        BeamSearchParams(width), max_tokens=MAX_TOKENS, min_tokens=0, stop_token_ids=(),
        num_logprobs=None,
    )  # fmt: skip
    params = SamplingParams(
        max_tokens=1, temperature=0.0, ignore_eos=True, num_logprobs=beams.num_candidates
    )
    while not beams.is_over:
        prompts = [[*prompt, *beam.token_ids] for beam in beams.beams]
        outputs = run(engine, prompts, [params] * len(prompts))
        tops = {output.sequence_id: output.logprobs[0].top for output in outputs}
        beams.advance([tops[str(i)] for i in range(len(prompts))])
    return [hypothesis.token_ids for hypothesis in beams.hypotheses]


WAYS: dict[str, Callable[[Engine, list[int], int], Outputs]] = {
    "outputs": draw,
    "search": search,
    "requests": search_by_requests,
}


def measure(model: LoadedModel, num_prompt_tokens: int, width: int) -> dict[str, float]:
    """Return CPU seconds of each way; what they find is the same."""
    prompt = [(7 * i * i + i) % 1000 + 3 for i in range(num_prompt_tokens)]
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    found: set[tuple[tuple[int, ...], ...]] = set()
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=1024, num_threads=1)
            engine = Engine(model, config, hash_block=hash_block)
            started = time.thread_time()
            outputs = way(engine, prompt, width)
            seconds[name].append(time.thread_time() - started)
            if outputs:
                found.add(tuple(outputs))
    assert len(found) == 1, "the searches found something else"
    return {name: min(values) for name, values in seconds.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEMO)
    folder = parser.parse_args().model
    model = load_model(folder, EngineConfig(dtype="float32", num_threads=1))
    print("| prompt | width | outputs, ms | search, ms | requests, ms |")
    print("|---|---|---|---|---|")
    for num_prompt_tokens in (40, 1000):
        for width in (2, 4, 8):
            times = measure(model, num_prompt_tokens, width)
            row = " | ".join(f"{1e3 * times[name]:.0f}" for name in WAYS)
            print(f"| {num_prompt_tokens} | {width} | {row} |", flush=True)


if __name__ == "__main__":
    main()
