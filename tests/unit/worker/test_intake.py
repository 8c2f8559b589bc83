"""What a worker refuses before its engine hears of it."""

import math
from typing import Any

import pytest
from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import EngineConfig, KvSource, SequenceRequest
from pagoda_runtime.block_hash import hash_prompt
from pagoda_worker.intake import Refusal, check_message
from pagoda_worker.sequences import LiveSequence
from pagoda_worker.served_model import ServedModel

ROOT = bytes(16)
MODEL = ServedModel(
    name="tiny",
    kv_identity=bytes(16),
    config=EngineConfig(),
    max_model_len=64,
    vocab_size=256,
    embedding_size=64,
    block_bytes=1024,
    dtype="float32",
)


def make_message(num_tokens: int = 20, **fields: Any) -> generate_pb2.GenerateRequest:
    prompt = range(num_tokens)
    return generate_pb2.GenerateRequest(
        request_id="r",
        prompt_token_ids=prompt,
        cache_root=ROOT,
        block_hashes=b"".join(hash_prompt(ROOT, prompt, MODEL.block_size)),
        sampling=generate_pb2.SamplingParams(max_tokens=4),
        **fields,
    )


def check(
    message: generate_pb2.GenerateRequest,
    *others: LiveSequence,
    num_waiting: int = 0,
    num_waiting_of_tenant: int = 0,
    max_num_waiting: int = 2,
    deadline: float = math.inf,
) -> SequenceRequest | Refusal:
    return check_message(
        message,
        MODEL,
        others,
        num_waiting=num_waiting,
        num_waiting_of_tenant=num_waiting_of_tenant,
        max_num_waiting=max_num_waiting,
        deadline=deadline,
        now=100.0,
        kv_source=KvSource.COMPUTE,
        first_export_block=0,
        prefill_only=False,
        token_mask=None,
    )


@pytest.mark.parametrize("name", ["g 0\r\n\r\nPUB pagoda.v1.x", "a.b", "*", "x" * 65])
def test_an_id_that_is_none_is_refused(name: str) -> None:
    for message in (
        make_message(gateway_id=name),
        make_message(plan=generate_pb2.KvPlan(prefill_worker_id=name)),
    ):
        refusal = check(message)

        assert isinstance(refusal, Refusal)
        assert refusal.status == generate_pb2.ADMIT_STATUS_INVALID
        assert "must be a plain id" in refusal.message


def test_what_can_be_served_is_the_engines_request() -> None:
    request = check(make_message(), deadline=100.5)

    assert isinstance(request, SequenceRequest)
    assert request.sequence_id == "r.0.0"
    assert len(request.block_hashes) == 1
    assert request.deadline == 100.5


@pytest.mark.parametrize(
    ("message", "num_waiting", "status", "text"),
    [
        (make_message(), 2, generate_pb2.ADMIT_STATUS_OVERLOADED, "max_num_waiting is 2"),
        (make_message(80), 0, generate_pb2.ADMIT_STATUS_INVALID, "64"),
    ],
)
def test_a_refusal_says_why(
    message: generate_pb2.GenerateRequest, num_waiting: int, status: int, text: str
) -> None:
    refusal = check(message, num_waiting=num_waiting)

    assert isinstance(refusal, Refusal)
    assert refusal.status == status
    assert text in refusal.message


def test_who_is_overdue_is_not_blamed_for_its_parameters() -> None:
    refusal = check(make_message(), deadline=99.5)

    assert isinstance(refusal, Refusal)
    assert refusal.status == generate_pb2.ADMIT_STATUS_OVERDUE
    assert "its deadline passed 0.500 s ago" in refusal.message


@pytest.mark.parametrize(("is_ending", "is_refused"), [(False, True), (True, False)])
def test_an_attempt_is_refused_while_a_later_one_lives(is_ending: bool, is_refused: bool) -> None:
    request = check(make_message())
    assert isinstance(request, SequenceRequest)
    later = LiveSequence("r.0.1", "r", 0, 1, "g", Context(), 200.0, request, is_ending=is_ending)

    assert isinstance(check(make_message(), later), Refusal) is is_refused


def test_the_queue_is_never_all_one_tenants() -> None:
    """Each of three floods until it is refused; whoever comes then still finds a place."""
    waiting = [0, 0, 0]
    for i in range(3):
        while isinstance(
            check(
                make_message(),
                num_waiting=sum(waiting),
                num_waiting_of_tenant=waiting[i],
                max_num_waiting=256,
            ),
            SequenceRequest,
        ):
            waiting[i] += 1
    assert waiting[0] == 205  # four fifths
    assert isinstance(
        check(make_message(), num_waiting=sum(waiting), max_num_waiting=256), SequenceRequest
    )
    refusal = check(make_message(), num_waiting=205, num_waiting_of_tenant=205, max_num_waiting=256)
    assert isinstance(refusal, Refusal)
    assert refusal.status == generate_pb2.ADMIT_STATUS_OVERLOADED
    for part in ("205 sequences of its tenant", "51 of 256", "max_num_waiting"):
        assert part in refusal.message


def test_whose_it_is_and_what_it_weighs_reach_the_engine() -> None:
    named = check(make_message(tenant=b"abc", weight=0.1))
    unnamed = check(make_message())
    assert isinstance(named, SequenceRequest)
    assert isinstance(unnamed, SequenceRequest)
    assert (named.tenant, named.weight) == (b"abc", 0.1)
    assert (unnamed.tenant, unnamed.weight) == (b"", 1.0)
    refusal = check(make_message(weight=-1.0))
    assert isinstance(refusal, Refusal)
    assert refusal.status == generate_pb2.ADMIT_STATUS_INVALID
    assert "weight" in refusal.message
