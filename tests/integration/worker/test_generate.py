"""Disaggregated, aggregated and alone: the same tokens."""

import asyncio
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from support.kv_pools import maps_of_peers
from support.prefill_process import WORKER_ID, prefill_process
from support.worker_cluster import GREEDY, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import SamplingParams
from pagoda_worker.heartbeat import status

pytestmark = pytest.mark.integration

RANDOM = random.Random(7)
SHARED = [RANDOM.randrange(250) for _ in range(48)]
PROMPTS = [
    [RANDOM.randrange(250) for _ in range(length)] for length in (1, 15, 16, 17, 32, 100)
] + [[*SHARED, 1, 2, 3], [*SHARED, 4, 5, 6, 7], SHARED]


async def run_all(cluster: Cluster, prefill_worker_id: str, sampling: SamplingParams) -> list:
    answers = await asyncio.gather(
        *(
            cluster.generate(
                "decode-1", prompt, sampling=sampling, prefill_worker_id=prefill_worker_id
            )
            for prompt in PROMPTS
        )
    )
    return [await answer.finished() for answer in answers]


@pytest.mark.parametrize("num_layer_groups", [1, 2])
@pytest.mark.parametrize("kv_transfer", ["host", "grpc"])
async def test_disaggregated_tokens_equal_the_engine_alone(
    cluster: Cluster, kv_transfer: str, num_layer_groups: int
) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill(
        "prefill-1", kv_transfer=kv_transfer, num_layer_groups=num_layer_groups
    )

    answers = await run_all(cluster, "prefill-1", GREEDY)

    assert [answer.token_ids for answer in answers] == cluster.alone(PROMPTS)
    assert all(a.last.finish_reason == generate_pb2.FINISH_REASON_LENGTH for a in answers)
    assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == len(PROMPTS)
    assert decode.metric("pagoda_prefill_tokens_total") == 0
    assert prefill.metric("pagoda_kv_transfer_bytes_total", direction="sent") > 0
    await cluster.idle(decode)
    await cluster.idle(prefill)


@pytest.mark.parametrize("num_layer_groups", [1, 2])
async def test_tokens_with_kv_read_from_another_process_equal_the_engine_alone(
    cluster: Cluster, num_layer_groups: int
) -> None:
    decode = await cluster.start_decode("decode-1")
    async with prefill_process(cluster, num_layer_groups=num_layer_groups):
        answers = await run_all(cluster, WORKER_ID, GREEDY)

        assert [answer.token_ids for answer in answers] == cluster.alone(PROMPTS)
        assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == len(PROMPTS)
        assert decode.metric("pagoda_prefill_tokens_total") == 0
        assert len(maps_of_peers()) == 1
    await cluster.idle(decode)
    await cluster.status("decode-1", lambda status: not maps_of_peers(), is_new=True)


async def test_no_pool_is_offered_to_another_host(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "host_id", lambda: "another")
    decode = await cluster.start_decode("decode-1")
    async with prefill_process(cluster):
        await cluster.status("decode-1", lambda status: True, is_new=True)  # which it hears too
        answers = await run_all(cluster, WORKER_ID, GREEDY)

        assert [answer.token_ids for answer in answers] == cluster.alone(PROMPTS)
        assert decode.metric("pagoda_kv_leases_settled_total", outcome="received") == len(PROMPTS)
        assert not maps_of_peers()


async def test_aggregated_tokens_equal_the_engine_alone(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")

    answers = await run_all(cluster, "", GREEDY)

    assert [answer.token_ids for answer in answers] == cluster.alone(PROMPTS)
    await cluster.idle(decode)


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_sampled_tokens_and_logprobs_equal_the_engine_alone(
    cluster: Cluster, prefill_worker_id: str
) -> None:
    await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    sampling = SamplingParams(
        max_tokens=10, temperature=0.7, top_p=0.9, seed=99, num_logprobs=2, ignore_eos=True
    )

    answers = await run_all(cluster, prefill_worker_id, sampling)

    assert [answer.token_ids for answer in answers] == cluster.alone(PROMPTS, sampling)
    for answer in answers:
        logprobs = [p for frame in answer.frames for p in frame.logprobs]
        assert len(logprobs) == 10
        assert all(len(p.top) == 2 and p.chosen.logprob <= 0 for p in logprobs)


async def test_one_token_ends_on_the_prefill_side(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)

    answers = await run_all(cluster, "prefill-1", sampling)

    assert [answer.token_ids for answer in answers] == cluster.alone(PROMPTS, sampling)
    assert all(a.last.finish_reason == generate_pb2.FINISH_REASON_LENGTH for a in answers)
    assert all(len(a.frames) == 1 for a in answers)
    await cluster.idle(decode)
    await cluster.idle(prefill)


@pytest.mark.parametrize("prefill_worker_id", ["", "prefill-1"])
async def test_later_attempt_goes_on_where_the_earlier_one_ended(
    cluster: Cluster, prefill_worker_id: str
) -> None:
    await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    prompt = PROMPTS[5]
    expected = cluster.alone([prompt])[0]

    answer = await cluster.generate(
        "decode-1",
        prompt,
        output_token_ids=expected[:5],
        attempt=1,
        prefill_worker_id=prefill_worker_id,
    )

    assert (await answer.finished()).token_ids == expected[5:]


async def test_second_prompt_reuses_the_first_ones_blocks(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1")
    await cluster.start_prefill("prefill-1")
    for prompt in PROMPTS[6:8]:
        answer = await cluster.generate("decode-1", prompt, prefill_worker_id="prefill-1")
        await answer.finished()

    first, *_, last = sorted(answer.frames, key=lambda frame: frame.first_index)
    assert first.cached.device == len(SHARED)
    assert first.stages.prefill_compute_ms > 0
    assert last.stages.decode_generate_ms > 0
    assert last.stages.kv_transfer_ms > 0
    assert answer.token_ids == cluster.alone([PROMPTS[7]])[0]


async def test_choices_of_a_prompt_are_prefilled_once(cluster: Cluster) -> None:
    """The gateway has the first choice prefilled elsewhere; the others find its blocks."""
    decode = await cluster.start_decode("decode-1")
    prefill = await cluster.start_prefill("prefill-1")
    prompt = PROMPTS[5]  # 100 tokens, 6 full blocks

    answers = await asyncio.gather(
        *(
            cluster.generate("decode-1", prompt, prefill_worker_id="" if choice else "prefill-1")
            for choice in range(4)
        )
    )

    for answer in answers:
        assert (await answer.finished()).token_ids == cluster.alone([prompt])[0]
    assert prefill.metric("pagoda_prefill_tokens_total") == 100
    assert decode.metric("pagoda_prefill_tokens_total") == 3 * 4, "what fills no block"


@pytest.mark.parametrize("max_tokens", [0, 12])
async def test_logprobs_of_the_prompt_come_before_its_first_token(
    cluster: Cluster, max_tokens: int
) -> None:
    decode = await cluster.start_decode("decode-1")
    prompt = PROMPTS[5]
    sampling = dataclasses.replace(GREEDY, max_tokens=max_tokens, num_prompt_logprobs=2)
    await (await cluster.generate("decode-1", prompt)).finished()  # its blocks must not be reused
    answer = await (await cluster.generate("decode-1", prompt, sampling=sampling)).finished()

    assert answer.token_ids == cluster.alone([prompt])[0][:max_tokens]
    assert answer.last.finish_reason == generate_pb2.FINISH_REASON_LENGTH
    assert sorted(answer.prompt_logprobs) == list(range(1, len(prompt)))
    assert [p.chosen.token_id for p in answer.prompt_logprobs.values()] == prompt[1:]
    first = next(frame for frame in answer.frames if frame.HasField("cached"))
    assert first.cached.device == 0
    assert first.stages.prefill_compute_ms > 0
    await cluster.idle(decode)


async def test_an_embedding_comes_with_the_end(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    prompt = PROMPTS[5]
    sampling = dataclasses.replace(GREEDY, max_tokens=0, embed=True)
    first = await (await cluster.generate("decode-1", prompt, sampling=sampling)).finished()
    again = await (await cluster.generate("decode-1", prompt, sampling=sampling)).finished()
    for answer, is_cached in ((first, False), (again, True)):
        (frame,) = answer.frames
        assert frame.finish_reason == generate_pb2.FINISH_REASON_STOP
        assert not frame.token_ids
        assert (frame.cached.device > 0) is is_cached
        assert frame.stages.prefill_compute_ms > 0
    found = [np.frombuffer(answer.frames[0].embedding, "<f4") for answer in (first, again)]
    assert len(found[0]) == cluster.statuses["decode-1"].model.embedding_size
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    await cluster.idle(decode)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"num_prompt_logprobs": 0}, "num_prompt_logprobs is 0"),
        ({"embed": True, "max_tokens": 0}, "embed is True"),
    ],
)
async def test_what_a_prompt_gives_needs_its_prefill_here(
    cluster: Cluster, fields: dict[str, Any], wrong: str
) -> None:
    await cluster.start_decode("decode-1")
    sampling = dataclasses.replace(GREEDY, **fields)
    request = cluster.request(PROMPTS[5], sampling=sampling, prefill_worker_id="prefill-1")
    response = await cluster.ask("decode-1", request)
    assert response.status == generate_pb2.ADMIT_STATUS_INVALID
    assert wrong in response.message
