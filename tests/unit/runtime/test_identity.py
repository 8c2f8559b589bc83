import time

from ulid_transform import ulid_to_bytes, ulid_to_timestamp

from pagoda_runtime.identity import host_id, new_epoch, new_request_id, new_worker_id
from pagoda_runtime.messaging import subjects


def test_ids_are_unique() -> None:
    assert len({new_worker_id("decode") for _ in range(1000)}) == 1000
    assert len({new_request_id() for _ in range(1000)}) == 1000


def test_a_worker_id_is_one_plain_subject_token() -> None:
    worker_id = new_worker_id("decode")

    assert subjects.token(worker_id) == worker_id
    assert worker_id.startswith("decode-")


def test_request_ids_are_ulids() -> None:
    before = time.time_ns() // 1_000_000
    request_id = new_request_id()

    assert len(request_id) == 26
    assert len(ulid_to_bytes(request_id)) == 16
    assert before <= ulid_to_timestamp(request_id) <= time.time_ns() // 1_000_000
    assert len(new_epoch()) == 26


def test_the_host_id_is_stable() -> None:
    assert host_id() == host_id()
