import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.kv_pools import CPU, LAYOUT, fill, make_cache, maps_of

from pagoda_engine.cache.peer_pool import (
    PeerPoolError,
    PoolExport,
    PoolHandle,
    exportable_cache,
)
from pagoda_worker.errors import LeaseMismatchError
from pagoda_worker.kv_transfer import peer_pools
from pagoda_worker.kv_transfer.peer_pools import PeerPools
from pagoda_worker.kv_transfer.pool_codec import (
    DigestKind,
    digest_kind,
    is_pool_open,
    pool_answer,
    pool_handle,
    pool_message,
)

OWN = make_cache()


@pytest.fixture
def exports() -> list[PoolExport]:
    """Two lives of a producer."""
    return [PoolExport(fill(exportable_cache(LAYOUT, 5, CPU), seed=i)) for i in range(2)]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
async def pools(executor: ThreadPoolExecutor) -> PeerPools:
    return PeerPools(OWN, executor)


def num_peer_maps(handle: PoolHandle) -> int:
    return len(maps_of(handle.memory)) - 1  # the owner's own


async def test_pool_is_opened_once(pools: PeerPools, exports: list[PoolExport]) -> None:
    handle = exports[0].handle
    first = await pools.open("prefill-1", handle)
    assert await pools.open("prefill-1", dataclasses.replace(handle)) is first
    assert num_peer_maps(handle) == 1


async def test_new_life_of_a_producer_replaces_the_old_one(
    pools: PeerPools, exports: list[PoolExport]
) -> None:
    old = await pools.open("prefill-1", exports[0].handle)
    new = await pools.open("prefill-1", exports[1].handle)
    assert len(pools) == 1
    with pytest.raises(PeerPoolError, match="closed"):
        old.read([0])
    assert new.read([0]).any()
    del old
    assert num_peer_maps(exports[0].handle) == 0


async def test_lost_producers_pool_is_closed(pools: PeerPools, exports: list[PoolExport]) -> None:
    lost = await pools.open("prefill-1", exports[0].handle)
    kept = await pools.open("prefill-2", exports[1].handle)
    pools.lose("prefill-1")
    pools.lose("prefill-3")
    with pytest.raises(PeerPoolError, match="closed"):
        lost.read([0])
    assert num_peer_maps(exports[0].handle) == 0
    assert kept.read([0]).any()
    assert (await pools.open("prefill-1", exports[0].handle)).read([0]).any()


async def test_producer_lost_while_its_pool_opens_leaves_no_mapping(
    pools: PeerPools, exports: list[PoolExport], executor: ThreadPoolExecutor
) -> None:
    may_open = threading.Event()
    executor.submit(may_open.wait, 10)
    opening = asyncio.create_task(pools.open("prefill-1", exports[0].handle))
    await asyncio.sleep(0)
    pools.lose("prefill-1")
    may_open.set()
    pool = await opening
    with pytest.raises(PeerPoolError, match="closed"):
        pool.read([0])
    assert num_peer_maps(exports[0].handle) == 0
    assert len(pools) == 0


async def test_pool_that_cannot_be_opened_is_named_in_the_log(
    pools: PeerPools, exports: list[PoolExport], caplog: pytest.LogCaptureFixture
) -> None:
    handle = dataclasses.replace(exports[0].handle, layout="other")
    assert await pools.open("prefill-1", handle) is None
    assert len(pools) == 0
    assert "KV blocks of prefill-1 come as gRPC payloads" in caplog.text
    assert "the pool's layout is other" in caplog.text


async def test_least_recently_used_pool_goes_when_its_last_reader_does(
    pools: PeerPools, exports: list[PoolExport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_pools, "MAX_POOLS", 1)
    read = await pools.open("prefill-1", exports[0].handle)
    await pools.open("prefill-2", exports[1].handle)
    assert len(pools) == 1
    assert read.read([1]).any()
    del read
    assert num_peer_maps(exports[0].handle) == 0


async def test_close_closes_all(pools: PeerPools, exports: list[PoolExport]) -> None:
    for position, export in enumerate(exports):
        await pools.open(f"prefill-{position}", export.handle)
    pools.close()
    assert [num_peer_maps(export.handle) for export in exports] == [0, 0]


def test_handle_survives_its_message(exports: list[PoolExport]) -> None:
    handle = dataclasses.replace(exports[0].handle, offset=64, device="GPU-7")
    assert pool_handle(pool_message(handle)) == handle


@pytest.mark.parametrize("is_open", [True, False])
def test_answer_survives_its_metadata(is_open: bool) -> None:
    assert is_pool_open((("other", "open"), *pool_answer(is_open))) is is_open


@pytest.mark.parametrize("metadata", [(), (("other", "open"),), (("pagoda-kv-pool", "?"),)])
def test_no_answer_is_none(metadata: tuple[tuple[str, str], ...]) -> None:
    assert is_pool_open(metadata) is None


def test_unknown_kinds_are_refused(exports: list[PoolExport]) -> None:
    message = pool_message(exports[0].handle)
    message.kind = 99
    with pytest.raises(PeerPoolError, match="kind 99"):
        pool_handle(message)
    with pytest.raises(LeaseMismatchError, match="kind 99"):
        digest_kind(99)


def test_unnamed_digest_is_the_old_one() -> None:
    assert digest_kind(0) is DigestKind.XXH3
