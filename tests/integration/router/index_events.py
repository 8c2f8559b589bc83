"""KV events and block hashes for tests."""

from collections.abc import Iterable

from pagoda.rpc.v1 import kv_event_pb2

DEVICE, CPU, NVME = kv_event_pb2.TIER_DEVICE, kv_event_pb2.TIER_CPU, kv_event_pb2.TIER_NVME


def pack(numbers: Iterable[int]) -> bytes:
    return b"".join(hashes(numbers))


def hashes(numbers: Iterable[int]) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def make_event(
    stored: Iterable[int] = (),
    evicted: Iterable[int] = (),
    *,
    worker_id: str = "w",
    epoch: str = "e1",
    sequence: int = 1,
    tier: "kv_event_pb2.Tier.ValueType" = DEVICE,
    is_snapshot: bool = False,
) -> kv_event_pb2.KvEvent:
    return kv_event_pb2.KvEvent(
        worker_id=worker_id,
        epoch=epoch,
        sequence=sequence,
        tier=tier,
        stored=pack(stored),
        evicted=pack(evicted),
        is_snapshot=is_snapshot,
    )
