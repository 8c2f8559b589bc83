"""Many sequences, small pools, random cancels: nothing leaks and nobody gets wrong tokens."""

import asyncio
import random

import pytest
from support.worker_cluster import GREEDY, Answer, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import SamplingParams

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NUM_SEQUENCES = 60


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_cancels_at_random_moments_leak_nothing(cluster: Cluster, seed: int) -> None:
    rng = random.Random(seed)
    small = {"num_blocks": 40, "max_num_seqs": 6}
    decode = await cluster.start_decode("decode-1", **small)
    prefill = await cluster.start_prefill(
        "prefill-1", kv_transfer=rng.choice(["host", "grpc"]), num_layer_groups=2, **small
    )
    prefixes = [[rng.randrange(250) for _ in range(48)] for _ in range(3)]
    prompts = [
        [*rng.choice(prefixes), *(rng.randrange(250) for _ in range(rng.randint(0, 60)))]
        for _ in range(NUM_SEQUENCES)
    ]
    expected = cluster.alone(prompts)
    cancels: list[asyncio.Task[None]] = []

    async def cancel_at(answer: Answer, num_tokens: int) -> None:
        await answer.wait_for(lambda a: a.last is not None or len(a.tokens) >= num_tokens)
        await cluster.cancel("decode-1", answer)

    async def run(prompt: list[int]) -> Answer:
        answer = await cluster.generate(
            "decode-1",
            prompt,
            sampling=GREEDY,
            prefill_worker_id=rng.choice(["prefill-1", "prefill-1", ""]),
        )
        if rng.random() < 0.5:
            cancels.append(asyncio.create_task(cancel_at(answer, rng.randint(0, 8))))
        return await answer.finished()

    answers = await asyncio.gather(*map(run, prompts))
    await asyncio.gather(*cancels)

    await cluster.idle(decode)
    await cluster.idle(prefill)
    for answer, tokens in zip(answers, expected, strict=True):
        is_whole = answer.last.finish_reason == generate_pb2.FINISH_REASON_LENGTH
        assert answer.token_ids == (tokens if is_whole else tokens[: len(answer.tokens)])
    assert any(a.last.finish_reason == generate_pb2.FINISH_REASON_ABORT for a in answers)
    assert decode.metric("pagoda_kv_leases") == 0


async def test_preempted_imports_keep_their_tokens(cluster: Cluster) -> None:
    sampling = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    prompts = [[seed * 7 + i for i in range(30)] for seed in range(1, 7)]
    expected = cluster.alone(prompts, sampling)
    decode = await cluster.start_decode("decode-1", num_blocks=16)
    await cluster.start_prefill("prefill-1")

    answers = [
        await cluster.generate("decode-1", prompt, sampling=sampling, prefill_worker_id="prefill-1")
        for prompt in prompts
    ]

    assert [(await answer.finished()).token_ids for answer in answers] == expected
    assert decode.metric("pagoda_preemptions_total") > 0
    await cluster.idle(decode)
