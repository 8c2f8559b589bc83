"""Short prompts and small engines for the tests of `pagoda_engine.Engine`."""

import random

from pagoda_engine import EngineConfig, LoadedModel, SamplingParams
from support.engine_driver import EngineDriver

_rng = random.Random(1)
PROMPT = [_rng.randrange(256) for _ in range(21)]
OTHER = [_rng.randrange(256) for _ in range(21)]


def greedy(max_tokens: int = 6, **fields: object) -> SamplingParams:
    values = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    return SamplingParams(**{**values, **fields})


def make_driver(model: LoadedModel, **fields: object) -> EngineDriver:
    values = {"block_size": 4, "num_blocks": 32, "max_model_len": 100}
    return EngineDriver(model, EngineConfig(**{**values, **fields}))


def greedy_tokens(model: LoadedModel, prompt: list[int], max_tokens: int = 6) -> list[int]:
    return make_driver(model).generate([prompt], sampling=greedy(max_tokens))[0]
