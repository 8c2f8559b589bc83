"""A cache never changes what a request gets: tokens and logprobs, to the last bit."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine_driver import hash_block, make_request
from support.seeds import seed_of_tests

from pagoda_engine import Engine, EngineConfig, SamplingParams, SequenceRequest, load_model

BLOCK_SIZE = 8
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, num_logprobs=0, ignore_eos=True)


@pytest.mark.parametrize("kv", ["auto", "fp8", "int8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_cold_and_warm_are_the_same(tiny_folder: Path, dtype: str, kv: str) -> None:
    num_prompts = 1000 if (dtype, kv) == ("bfloat16", "auto") else 50
    rng = random.Random(seed_of_tests())
    prompts = [
        [rng.randrange(1, 250) for _ in range(rng.randint(20, 90))] for _ in range(num_prompts)
    ]
    model = load_model(tiny_folder, replace(config(dtype), kv_cache_dtype=kv))
    assert model.kv_dtype.itemsize == (1 if kv != "auto" else model.dtype.itemsize)
    cold = [run(Engine(model, config(dtype), hash_block=hash_block), [p])[0] for p in prompts]
    differing = 0
    for start in range(0, num_prompts, 25):
        part = prompts[start : start + 25]
        # In other chunks, and beside others; then on the blocks that this left.
        engine = Engine(model, config(dtype, rng.randint(5, 60)), hash_block=hash_block)
        run(engine, [p[: rng.randint(BLOCK_SIZE, len(p))] for p in part])
        assert all(engine.match_prefix(make(p).block_hashes) for p in part)
        warm = run(engine, part)
        differing += sum(a != b for a, b in zip(cold[start : start + 25], warm, strict=True))
    assert differing == 0


def config(dtype: str, max_num_batched_tokens: int = 512) -> EngineConfig:
    return EngineConfig(
        num_blocks=1000,
        block_size=BLOCK_SIZE,
        max_num_seqs=25,
        max_num_batched_tokens=max(max_num_batched_tokens, 25),
        max_model_len=128,
        device="cpu",
        dtype=dtype,
    )


def run(engine: Engine, prompts: list[list[int]]) -> list[list[tuple[int, float]]]:
    """Return token ids and logprobs of each prompt's output."""
    found: dict[str, list[tuple[int, float]]] = {str(i): [] for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        engine.add(make(prompt, str(i)))
    while engine.has_work():
        for output in engine.step().outputs:
            found[output.sequence_id] += [
                (token.token_id, token.logprob) for token in output.logprobs
            ]
    assert all(len(tokens) == GREEDY.max_tokens for tokens in found.values())
    return list(found.values())


def make(prompt: list[int], name: str = "") -> SequenceRequest:
    return make_request(name, prompt, block_size=BLOCK_SIZE, sampling=GREEDY)
