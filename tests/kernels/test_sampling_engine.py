"""The device's sampler and the engine's choose the same tokens."""

import random

import pytest
import torch

from pagoda.kernels.sampling import penalise_logits, sample_tokens
from pagoda.kernels.sampling_rows import plan_sampling
from pagoda.kernels.triton_ops import sampling as triton_sampling

engine = pytest.importorskip("pagoda.engine.sampling")
sampling_params = pytest.importorskip("pagoda.engine.sampling_params")

SAMPLE = {"cpu": sample_tokens, "triton": triton_sampling.sample_tokens}
PENALISE = {"cpu": penalise_logits, "triton": triton_sampling.penalise_logits}
VOCAB_SIZE = 500


def draw_state(rng):
    params = sampling_params.SamplingParams(
        max_tokens=1000,
        temperature=rng.choice([0.0, 0.6, 1.0, 1.8]),
        top_k=rng.choice([0, 3, 40]),
        top_p=rng.choice([1.0, 0.5, 0.95]),
        min_p=rng.choice([0.0, 0.02]),
        repetition_penalty=rng.choice([0.8, 1.3]),
        frequency_penalty=rng.uniform(-2, 2),
        presence_penalty=rng.uniform(-2, 2),
        seed=rng.getrandbits(64),
    )
    return engine.SamplingState(
        params,
        prompt_token_ids=[rng.randrange(VOCAB_SIZE) for _ in range(40)],
        output_token_ids=[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 90))],
        eos_token_ids=(),
        vocab_size=VOCAB_SIZE,
    )


def rows_of(states, device):
    return plan_sampling(
        temperatures=[state.params.temperature for state in states],
        top_ks=[state.params.top_k for state in states],
        top_ps=[state.params.top_p for state in states],
        min_ps=[state.params.min_p for state in states],
        seeds=[state.params.seed for state in states],
        indices=[state.num_output_tokens for state in states],
        device=device,
    )


def test_tokens_are_the_engine_s(path, device, seed):
    rng = random.Random(seed)
    states = [draw_state(rng) for _ in range(16)]
    logits = 4 * torch.randn(16, VOCAB_SIZE)
    counted = [state.counts(torch.device("cpu")) for state in states]
    counts, in_prompt = (torch.stack(side).to(device) for side in zip(*counted, strict=True))
    factors = [
        torch.tensor([getattr(state.params, f"{name}_penalty") for state in states], device=device)
        for name in ("repetition", "frequency", "presence")
    ]
    penalised = PENALISE[path](logits.to(device), counts, in_prompt, *factors)
    token_ids, _ = SAMPLE[path](penalised, rows_of(states, device))
    assert token_ids.tolist() == [sampled.token_id for sampled in engine.sample(logits, states)]


def test_uniforms_are_the_engine_s(path, device):
    states = [draw_state(random.Random(number)) for number in range(16)]
    logits = torch.zeros(16, 4096, device=device)
    rows = rows_of(states, device)
    rows = plan_sampling(
        temperatures=[1.0] * 16,
        top_ks=[0] * 16,
        top_ps=[1.0] * 16,
        min_ps=[0.0] * 16,
        seeds=[state.params.seed for state in states],
        indices=rows.indices.tolist(),
        device=device,
    )
    token_ids, _ = SAMPLE[path](logits, rows)
    assert token_ids.tolist() == [int(state.uniform * 4096) for state in states]
