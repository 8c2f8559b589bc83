import dataclasses
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from support.kv_pools import CPU, LAYOUT, fill, make_cache, maps_of
from support.pool_owner import NUM_BLOCKS, PoolOwner, pool_owner

from pagoda_engine import KvCache
from pagoda_engine.cache import peer_pool
from pagoda_engine.cache.cuda_ipc import CudaDriver, CudaIpcError
from pagoda_engine.cache.peer_pool import (
    PeerPool,
    PeerPoolError,
    PoolExport,
    PoolKind,
    exportable_cache,
    open_peer_pool,
)
from pagoda_engine.cache.shared_memory import SharedMemory, SharedMemoryError


@pytest.fixture(scope="module")
def lasting_owner() -> Iterator[PoolOwner]:
    with pool_owner() as owner:
        yield owner


@pytest.fixture
def owner() -> Iterator[PoolOwner]:
    """One that a test may kill."""
    with pool_owner() as owner:
        yield owner


@pytest.fixture
def own() -> KvCache:
    return make_cache(num_blocks=3)


@pytest.fixture
def pool(lasting_owner: PoolOwner, own: KvCache) -> PeerPool:
    return open_peer_pool(lasting_owner.handle, own)


@pytest.mark.parametrize("layers", [None, range(1, 3)])
def test_blocks_of_another_process_are_read(pool: PeerPool, layers: range | None) -> None:
    rows = pool.read([4, 0, 2], layers)
    assert torch.equal(rows, make_cache(NUM_BLOCKS).read_blocks([4, 0, 2], layers))


def test_a_read_is_a_copy(owner: PoolOwner, own: KvCache) -> None:
    pool = open_peer_pool(owner.handle, own)
    rows = pool.read([1])
    owner.tell("fill")
    assert torch.equal(rows, make_cache().read_blocks([1]))
    assert torch.equal(pool.read([1]), fill(make_cache(), seed=2).read_blocks([1]))


@pytest.mark.parametrize("block_id", [-1, NUM_BLOCKS, 2**31])
def test_block_outside_the_pool_is_refused(pool: PeerPool, block_id: int) -> None:
    with pytest.raises(PeerPoolError, match=f"block {block_id} is not in a pool of 5 blocks"):
        pool.read([0, block_id])


def test_killed_owner_leaves_nothing_but_what_peers_hold(owner: PoolOwner, own: KvCache) -> None:
    pool = open_peer_pool(owner.handle, own)
    shm = os.listdir("/dev/shm")
    owner.kill()
    assert torch.equal(pool.read([3]), make_cache().read_blocks([3]))
    with pytest.raises(PeerPoolError, match="No such file"):
        open_peer_pool(owner.handle, own)
    pool.close()
    assert maps_of(owner.handle.memory) == []
    assert os.listdir("/dev/shm") == shm


def test_killed_peer_takes_its_mapping_along(owner: PoolOwner, own: KvCache) -> None:
    before = maps_of(owner.handle.memory, owner.process.pid)
    child = os.fork()
    if not child:
        open_peer_pool(owner.handle, own).read([0])
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert maps_of(owner.handle.memory, owner.process.pid) == before
    owner.tell("fill")


def test_closed_export_is_opened_by_nobody_new(owner: PoolOwner, own: KvCache) -> None:
    pool = open_peer_pool(owner.handle, own)
    owner.tell("close")
    with pytest.raises(PeerPoolError, match="No such file"):
        open_peer_pool(owner.handle, own)
    assert torch.equal(pool.read([3]), make_cache().read_blocks([3]))


def test_closed_pool_refuses_reads_and_is_unmapped(
    pool: PeerPool, lasting_owner: PoolOwner
) -> None:
    assert len(maps_of(lasting_owner.handle.memory)) == 1
    pool.close()
    pool.close()
    assert maps_of(lasting_owner.handle.memory) == []
    with pytest.raises(PeerPoolError, match="closed"):
        pool.read([0])


def test_close_lets_the_read_under_way_end(pool: PeerPool, lasting_owner: PoolOwner) -> None:
    class ClosingIds(list[int]):
        """Closes the pool in another thread between the first block and the second."""

        def __iter__(self) -> Iterator[int]:
            for position, block_id in enumerate(super().__iter__()):
                if position == 1:
                    thread = threading.Thread(target=pool.close)
                    thread.start()
                    thread.join()
                yield block_id

    rows = pool.read(ClosingIds([1, 2, 3]))

    assert torch.equal(rows, make_cache().read_blocks([1, 2, 3]))
    assert maps_of(lasting_owner.handle.memory) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": "kv2-L9"}, "the pool's layout is kv2-L9, mine is kv2-L3-HK2-D8-bfloat16-bs4"),
        ({"host": "elsewhere"}, "another host"),
        ({"num_blocks": 6}, "not within"),
        ({"num_blocks": 0}, "not within"),
        ({"offset": 1}, "not within"),
        ({"offset": -1}, "not within"),
        ({"num_bytes": 2**40}, f"expected {2**40}"),
        ({"memory": b"1/2/3"}, "no shared memory's handle"),
        ({"kind": PoolKind.CUDA_IPC, "device": "GPU-1"}, "on GPU GPU-1, this process uses none"),
    ],
)
def test_handle_that_does_not_fit_is_refused(
    lasting_owner: PoolOwner, own: KvCache, change: dict[str, object], says: str
) -> None:
    with pytest.raises(PeerPoolError, match=says):
        open_peer_pool(dataclasses.replace(lasting_owner.handle, **change), own)


def test_pool_may_begin_anywhere_in_its_memory(own: KvCache) -> None:
    memory = SharedMemory(64 + 2 * LAYOUT.block_bytes)
    cache = make_cache(2)
    memory.tensor[64:] = cache.tensor.view(torch.uint8).flatten()
    export = PoolExport(KvCache(LAYOUT, 2, CPU, memory=memory))
    handle = dataclasses.replace(export.handle, offset=64, num_bytes=memory.tensor.numel())

    assert torch.equal(open_peer_pool(handle, own).read([1]), cache.read_blocks([1]))


def test_host_without_a_cuda_driver_says_so() -> None:
    with pytest.raises(CudaIpcError, match="no CUDA driver: libnone"):
        CudaDriver(0, library="libnone.so")


def test_private_memory_cannot_be_exported(own: KvCache) -> None:
    with pytest.raises(PeerPoolError, match="private memory"):
        PoolExport(own)


def test_host_without_shared_memory_gets_a_private_pool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(num_bytes: int) -> None:
        raise SharedMemoryError("no memfd here")

    monkeypatch.setattr(peer_pool, "SharedMemory", refuse)

    cache = exportable_cache(LAYOUT, 2, CPU)

    assert cache.memory is None
    assert "stays private: no memfd here" in caplog.text
