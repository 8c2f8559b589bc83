"""What a decode worker answers to requests."""

import struct
import time

import pytest
from support.fake_prefill import FakePrefill
from support.worker_cluster import Answer, Cluster

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import SamplingParams
from pagoda_worker import role_handler

pytestmark = pytest.mark.integration

PROMPT = list(range(1, 60))
LONG = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


async def test_duplicate_request_runs_once(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    request = await fake.next_request()

    again = await cluster.ask("decode-1", answer.request)

    assert again.status == generate_pb2.ADMIT_STATUS_ACCEPTED
    await fake.release(request.lease)
    assert (await answer.finished()).token_ids == cluster.alone([PROMPT])[0]
    assert fake.requests.empty()
    await cluster.idle(decode)


async def test_later_attempt_ends_the_earlier_one(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    first = await cluster.generate("decode-1", PROMPT, sampling=LONG)
    await first.first_token()

    second = await cluster.generate(
        "decode-1", PROMPT, attempt=1, request_id=first.request.request_id
    )

    await first.finished()
    assert first.last.finish_reason == generate_pb2.FINISH_REASON_ABORT
    assert "superseded" in first.last.error
    assert (await second.finished()).token_ids == cluster.alone([PROMPT])[0]
    await cluster.idle(decode)


async def test_full_queue_refuses(cluster: Cluster) -> None:
    await cluster.start_decode("decode-1", max_num_seqs=1, max_num_waiting=1)
    await FakePrefill(cluster, "prefill-1").start()
    running = await cluster.generate("decode-1", PROMPT, prefill_worker_id="prefill-1")
    await cluster.status("decode-1", lambda status: status.load.num_running == 1)
    waiting = await cluster.generate("decode-1", PROMPT)

    refused = await cluster.ask("decode-1", cluster.request(PROMPT))

    assert refused.status == generate_pb2.ADMIT_STATUS_OVERLOADED
    assert "max_num_waiting is 1" in refused.message
    for answer in (running, waiting):
        await cluster.cancel("decode-1", answer)
        await answer.finished()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt_token_ids": [9999]}, "prompt_token_ids"),
        ({"prompt_token_ids": []}, "number of prompt tokens"),
        ({"block_hashes": b"short"}, "multiple of 16"),
        ({"block_hashes": b""}, "0 block hashes for 3 full blocks"),
        ({"cache_root": b"short"}, "cache_root"),
        ({"prompt_token_ids": [1] * 100_000}, "block hashes"),
    ],
)
async def test_impossible_request_is_invalid(
    cluster: Cluster, change: dict[str, object], says: str
) -> None:
    await cluster.start_decode("decode-1")
    request = cluster.request(PROMPT)
    for name, value in change.items():
        if name == "prompt_token_ids":
            del request.prompt_token_ids[:]
            request.prompt_token_ids.extend(value)
            if len(value) < 16:
                request.block_hashes = b""
        else:
            setattr(request, name, value)

    response = await cluster.ask("decode-1", request)

    assert response.status == generate_pb2.ADMIT_STATUS_INVALID
    assert says in response.message


async def test_what_is_left_counts_from_when_the_request_was_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited here for longer than that, for a turn or for its grammar."""
    monkeypatch.setattr(role_handler, "read_at", lambda _context: time.monotonic() - 5.0)
    await cluster.start_decode("decode-1")

    overdue = await cluster.ask("decode-1", cluster.request(PROMPT, deadline_seconds=4.0))
    in_time = await cluster.ask("decode-1", cluster.request(PROMPT, deadline_seconds=60.0))

    assert overdue.status == generate_pb2.ADMIT_STATUS_OVERDUE
    assert "its deadline passed 1." in overdue.message
    assert in_time.status == generate_pb2.ADMIT_STATUS_ACCEPTED


async def test_a_prefill_worker_is_told_what_is_left_by_then(cluster: Cluster) -> None:
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    answer = await cluster.generate(
        "decode-1", PROMPT, prefill_worker_id="prefill-1", deadline_seconds=50.0
    )

    request = await fake.next_request()

    assert 0 < request.generate.remaining_seconds < 50.0
    await fake.release(request.lease)
    await answer.finished()
    await cluster.idle(decode)


async def test_a_request_of_the_form_with_a_moment_runs_until_it_is_cancelled(
    cluster: Cluster,
) -> None:
    """A gateway of an older version, whose clock is an hour behind."""
    decode = await cluster.start_decode("decode-1")
    fake = await FakePrefill(cluster, "prefill-1").start()
    request = cluster.request(PROMPT, prefill_worker_id="prefill-1")
    request.ClearField("remaining_seconds")
    request.MergeFromString(b"\x59" + struct.pack("<d", time.time() - 3600.0))  # field 11

    response = await cluster.ask("decode-1", request)

    assert response.status == generate_pb2.ADMIT_STATUS_ACCEPTED
    sent = await fake.next_request()
    assert not sent.generate.HasField("remaining_seconds")
    await cluster.cancel("decode-1", Answer(request))
    await cluster.idle(decode)
