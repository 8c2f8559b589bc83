import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.stored_blocks import IDENTITY, make_block, make_hash, make_key

from pagoda_kvstore.app import open_store
from pagoda_kvstore.change_log import TierName
from pagoda_kvstore.config import KvstoreSettings
from pagoda_kvstore.store import GROUP_BYTES, BlockStore, PutOutcome
from pagoda_runtime.errors import StartError

SETTINGS = KvstoreSettings(cpu_bytes=8_000, nvme_bytes=40_000, segment_bytes=20_000)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlockStore]:
    async with open_store(SETTINGS, tmp_path) as (opened, _):
        yield opened


async def flush(store: BlockStore) -> None:
    assert await asyncio.to_thread(store.writes.flush, 10.0)


async def get(store: BlockStore, names: str) -> list[tuple[str, TierName]]:
    hashes = [make_hash(name) for name in names]
    return [
        (found.block.key.block_hash.rstrip(b".").decode(), found.tier)
        async for group in store.get(IDENTITY, hashes)
        for found in group
    ]


async def test_put_goes_to_memory_and_to_nvme(store: BlockStore) -> None:
    assert store.put(make_block("a")) is PutOutcome.STORED
    await flush(store)
    assert make_key("a") in store.memory
    assert make_key("a") in store.nvme


async def test_same_hash_is_stored_once(store: BlockStore) -> None:
    outcomes = [store.put(make_block("a")) for _ in range(3)]
    await flush(store)
    assert outcomes == [PutOutcome.STORED, PutOutcome.KNOWN, PutOutcome.KNOWN]
    assert (len(store.memory), len(store.nvme)) == (1, 1)


async def test_bad_digest_is_refused(store: BlockStore) -> None:
    bad = dataclasses.replace(make_block("a"), digest=bytes(16))
    assert store.put(bad) is PutOutcome.REFUSED
    assert store.match(IDENTITY, [make_hash("a")]) == []


async def test_block_evicted_from_memory_is_promoted_from_nvme(store: BlockStore) -> None:
    for name in "abcdefgh":
        store.put(make_block(name))
    await flush(store)
    assert make_key("a") not in store.memory
    assert await get(store, "a") == [("a", TierName.NVME)]
    assert await get(store, "a") == [("a", TierName.CPU)]


async def test_match_names_the_tier_of_each_leading_block(store: BlockStore) -> None:
    for name in "abcdefgh":
        store.put(make_block(name))
    await flush(store)
    hashes = [make_hash(name) for name in "ahxb"]
    assert store.match(IDENTITY, hashes) == [TierName.NVME, TierName.CPU]


async def test_get_ends_at_the_first_miss(store: BlockStore) -> None:
    for name in "abd":
        store.put(make_block(name))
    await flush(store)
    assert [name for name, _ in await get(store, "abcd")] == ["a", "b"]


async def test_damage_in_memory_is_healed_from_nvme(store: BlockStore) -> None:
    store.put(make_block("a"))
    await flush(store)
    entry = store.memory._entries[make_key("a")]
    entry.block = dataclasses.replace(entry.block, payload=b"damaged".ljust(1000))
    assert await get(store, "a") == [("a", TierName.NVME)]
    assert store.memory.num_bad_digests == 1


async def test_chain_longer_than_memory_continues_on_nvme(store: BlockStore) -> None:
    parents = ["", *"abcdefg"]
    outcomes = [store.put(make_block(n, p)) for n, p in zip("abcdefgh", parents, strict=True)]
    await flush(store)
    assert set(outcomes) == {PutOutcome.STORED}
    assert [name for name, _ in await get(store, "abcdefgh")] == list("abcdefgh")


async def test_block_too_large_for_both_tiers_is_refused(store: BlockStore) -> None:
    assert store.put(make_block("a", num_bytes=30_000)) is PutOutcome.REFUSED


async def test_full_write_queue_drops_and_counts(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"write_queue_bytes": 500})
    async with open_store(settings, tmp_path) as (store, _):
        assert store.put(make_block("a")) is PutOutcome.STORED
        assert store.writes.num_dropped == 1


async def test_reopened_store_has_its_nvme_content(tmp_path: Path) -> None:
    async with open_store(SETTINGS, tmp_path) as (store, first_id):
        for name in "abc":
            store.put(make_block(name))
    async with open_store(SETTINGS, tmp_path) as (store, second_id):
        assert await get(store, "abc") == [(name, TierName.NVME) for name in "abc"]
    assert first_id == second_id


async def test_groups_are_about_one_mebibyte(tmp_path: Path) -> None:
    settings = KvstoreSettings(cpu_bytes=16 << 20)
    size = GROUP_BYTES // 3
    async with open_store(settings, tmp_path) as (store, _):
        for name in "abcdefg":
            store.put(make_block(name, num_bytes=size))
        groups = [group async for group in store.get(IDENTITY, [make_hash(n) for n in "abcdefg"])]
    assert [len(group) for group in groups] == [3, 3, 1]


async def test_changes_say_what_each_tier_gained_and_lost(store: BlockStore) -> None:
    for name in "abcdef":
        store.put(make_block(name))
    await flush(store)
    changes = store.changes.take()
    assert changes is not None
    cpu, nvme = changes[TierName.CPU], changes[TierName.NVME]
    assert set(cpu.stored) == {make_hash(name) for name in "bcdef"}
    assert set(cpu.evicted) == {make_hash("a")}
    assert set(nvme.stored) == {make_hash(name) for name in "abcdef"}


async def test_cancelled_get_frees_its_place_among_the_readers(store: BlockStore) -> None:
    store.put(make_block("a"))
    await flush(store)
    store.memory._remove(store.memory._entries[make_key("a")])
    for _ in range(20):
        task = asyncio.create_task(get(store, "a"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert await get(store, "a") == [("a", TierName.NVME)]


async def test_a_folder_that_cannot_be_made_names_its_setting() -> None:
    with pytest.raises(StartError, match=r"folder /proc/nowhere .*set PAGODA_KVSTORE_NVME_DIR"):
        async with open_store(KvstoreSettings(), Path("/proc/nowhere")):
            pass
