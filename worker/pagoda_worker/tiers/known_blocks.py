"""Which blocks the kvstore is believed to have, and which of those it has lost.

A kvstore evicts, drops what is damaged, and may come back with another disk; it tells routers so,
not workers. What it was known to have is therefore asked for again before that keeps a block from
being written: at its next use, and not more often than every ten seconds. Knows no payloads.
"""

import collections
import math
import time
from collections.abc import Callable, Iterable, Sequence

import grpc.aio

from pagoda.rpc.v1 import kv_store_pb2, kv_store_pb2_grpc

MAX_REMEMBERED_HASHES = 65_536
SURE_SECONDS = 10.0  # also what the kvstore's queue for its disk may take
MATCH_SECONDS = 2.0
MAX_MATCHES = 16  # in one look: each ends at the first block that is lost


class KnownBlocks:
    """Hashes that need no writing, at most 65,536; the longest unused are forgotten first.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sure_until: collections.OrderedDict[bytes, float] = collections.OrderedDict()

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._sure_until

    def add(self, block_hashes: Iterable[bytes]) -> None:
        """The kvstore has these, or is about to."""
        sure_until = self._clock() + SURE_SECONDS
        for block_hash in block_hashes:
            self._sure_until[block_hash] = sure_until
            self._sure_until.move_to_end(block_hash)
        while len(self._sure_until) > MAX_REMEMBERED_HASHES:
            self._sure_until.popitem(last=False)

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """The kvstore does not have these."""
        for block_hash in block_hashes:
            self._sure_until.pop(block_hash, None)

    def doubt(self, block_hashes: Iterable[bytes]) -> None:
        """The kvstore may have lost these: ask at their next use."""
        for block_hash in block_hashes:
            if block_hash in self._sure_until:
                self._sure_until[block_hash] = -math.inf

    def is_doubtful(self, block_hash: bytes) -> bool:
        """Tell whether the kvstore has had time to lose a block that it was known to have."""
        return self._clock() >= self._sure_until.get(block_hash, math.inf)


async def find_lost(
    stub: "kv_store_pb2_grpc.KvStoreServiceAsyncStub",
    kv_identity: bytes,
    block_hashes: Sequence[bytes],
) -> set[bytes]:
    """Ask the kvstore which of these it has not. None, if it does not answer.

    Of a kvstore that has lost much not all are asked for: what lies behind so many lost ones counts
    as lost, and a put does not store again what is there.
    """
    lost: set[bytes] = set()
    start = 0
    try:
        for _ in range(MAX_MATCHES):
            asked = block_hashes[start:]
            if not asked:
                break
            request = kv_store_pb2.MatchRequest(
                kv_identity=kv_identity, block_hashes=b"".join(asked)
            )
            num_held = len((await stub.Match(request, timeout=MATCH_SECONDS)).tiers)
            lost.update(asked[num_held : num_held + 1])
            start += num_held + 1
    except grpc.aio.AioRpcError:  # gone, or busy: it is asked again at a later use
        return lost
    return lost.union(block_hashes[start:])
