"""KV events and block hashes for tests."""

from collections.abc import Iterable
from typing import Any

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
    part: int = 0,
    num_parts: int = 0,
) -> kv_event_pb2.KvEvent:
    return kv_event_pb2.KvEvent(
        worker_id=worker_id,
        epoch=epoch,
        sequence=sequence,
        tier=tier,
        stored=pack(stored),
        evicted=pack(evicted),
        is_snapshot=is_snapshot,
        snapshot_part=part,
        num_snapshot_parts=num_parts,
    )


class Source:
    """Events of one life of a worker, numbered."""

    def __init__(self, worker_id: str = "w", epoch: str = "e1") -> None:
        self.worker_id, self.epoch = worker_id, epoch
        self.sequence = 0

    def event(
        self, stored: Iterable[int] = (), evicted: Iterable[int] = (), **changes: Any
    ) -> kv_event_pb2.KvEvent:
        self.sequence += 1
        life = {"worker_id": self.worker_id, "epoch": self.epoch, "sequence": self.sequence}
        return make_event(stored, evicted, **(life | changes))

    def snapshot(self, *parts: Iterable[int], **changes: Any) -> list[kv_event_pb2.KvEvent]:
        return [
            self.event(part, is_snapshot=n == 1, part=n, num_parts=len(parts), **changes)
            for n, part in enumerate(parts, start=1)
        ]

    def lose(self) -> None:
        """Skip an event."""
        self.sequence += 1
