"""A device that is full or broken costs blocks, never the tier; each change is logged once."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.small_disk import SmallDisk, mounted_disk
from support.stored_blocks import make_block, make_key

from pagoda_kvstore.tiers import nvme, segment
from pagoda_kvstore.tiers.device_state import RETRY_SECONDS
from pagoda_kvstore.tiers.nvme import NvmeTier
from pagoda_kvstore.tiers.nvme_folder import NvmeFolder
from pagoda_kvstore.tiers.segment import HEADER_BYTES, RECORD_HEADER_BYTES

RECORD_BYTES = RECORD_HEADER_BYTES + 1000
SEGMENT_BYTES = HEADER_BYTES + 4 * RECORD_BYTES
NAMES = "abcdefghijkl"  # three segments

OpenTier = Callable[..., NvmeTier]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def open_tier(tmp_path: Path) -> Iterator[OpenTier]:
    tiers: list[NvmeTier] = []

    def open_one(
        path: Path = tmp_path / "nvme",
        *,
        budget_bytes: int = 3 * SEGMENT_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> NvmeTier:
        for tier in tiers:
            tier.close()
        tiers[:] = [
            NvmeTier(
                NvmeFolder(path),
                budget_bytes=budget_bytes,
                segment_bytes=segment_bytes,
                clock=clock,
            )
        ]
        return tiers[0]

    yield open_one
    for tier in tiers:
        tier.close()


def put(tier: NvmeTier, names: str) -> int:
    return tier.append([make_block(name) for name in names])


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, bad: Path) -> None:
    def read(path: Path, *args: object) -> object:
        if path == bad:
            raise OSError(errno.EIO, "Input/output error")
        return segment.read_blocks(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(nvme, "read_blocks", read)


def first_segment(tmp_path: Path) -> Path:
    return min((tmp_path / "nvme").glob("*.seg"))


def test_an_unreadable_oldest_segment_goes_and_the_tier_goes_on(
    open_tier: OpenTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = open_tier()
    put(tier, NAMES)
    tier.mark_used(make_key("a"))  # would be read to move on
    refuse_to_read(monkeypatch, first_segment(tmp_path))

    assert put(tier, "mnop") == 4
    assert [name for name in NAMES if make_key(name) in tier] == list(NAMES[4:])
    assert tier.num_read_errors == 1
    tier.check_invariants()


def test_an_unreadable_segment_does_not_end_a_start_over_the_budget(
    open_tier: OpenTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = open_tier()
    put(tier, NAMES)
    refuse_to_read(monkeypatch, first_segment(tmp_path))
    tier = open_tier(budget_bytes=2 * SEGMENT_BYTES)

    assert len(tier) == 8
    tier.check_invariants()


def test_what_cannot_be_read_is_a_miss_once_and_may_be_written_again(
    open_tier: OpenTier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tier = open_tier(budget_bytes=4 * SEGMENT_BYTES)
    put(tier, NAMES)
    refuse_to_read(monkeypatch, first_segment(tmp_path))

    for name in "abcd":
        assert tier.read([make_key(name)]) == []
    assert make_key("a") not in tier
    assert sum("cannot be read" in record.message for record in caplog.records) == 1
    put(tier, "a")
    assert tier.read([make_key("a")]) == [make_block("a")]
    tier.check_invariants()


def test_a_process_without_descriptors_loses_nothing(
    open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = open_tier()
    put(tier, "a")
    with monkeypatch.context() as patch:

        def open_none(*args: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        patch.setattr(os, "open", open_none)
        assert tier.read([make_key("a")]) == []

    assert tier.num_read_errors == 1
    assert tier.read([make_key("a")]) == [make_block("a")]


def test_a_torn_segment_that_cannot_be_cut_is_refused(
    open_tier: OpenTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(open_tier(), "ab")
    with first_segment(tmp_path).open("ab") as file:
        file.write(b"torn")

    def refuse(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "truncate", refuse)
    tier = open_tier()

    assert (len(tier), tier.num_refused_segments) == (0, 1)


def test_a_segment_that_cannot_be_continued_is_read_only(
    open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(open_tier(), "a")
    real_open = os.open

    def open_for_reading(path: object, flags: int, *mode: int) -> int:
        if flags == os.O_WRONLY:
            raise OSError(errno.EACCES, "Permission denied")
        return real_open(path, flags, *mode)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_for_reading)
        tier = open_tier()
    put(tier, "b")

    assert tier.read([make_key("a"), make_key("b")]) == [make_block("a"), make_block("b")]
    tier.check_invariants()


def test_a_broken_device_is_tried_again_and_logged_once(
    open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    tier = open_tier(clock=lambda: now)
    num_tries = 0

    def refuse(*args: object) -> int:
        nonlocal num_tries
        num_tries += 1
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "pwritev", refuse)
        assert put(tier, NAMES) == 0
        now += RETRY_SECONDS
        assert put(tier, NAMES) == 0
    assert (num_tries, tier.num_dropped, tier.device.num_errors) == (2, 24, 2)
    now += RETRY_SECONDS
    assert put(tier, "a") == 1

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "takes no blocks ([Errno 5] Input/output error)" in caplog.messages[0]
    assert caplog.messages[1].endswith("takes blocks again")


@pytest.mark.slow
def test_a_full_disk_evicts_as_a_full_budget_does(open_tier: OpenTier, disk: SmallDisk) -> None:
    tier = open_tier(disk.path / "nvme", budget_bytes=1 << 30, segment_bytes=4 << 20)
    blocks = [make_block(f"block {i}", num_bytes=1 << 18) for i in range(160)]  # 40 MiB

    assert tier.append(blocks) == len(blocks)
    assert 20 << 20 < tier.used_bytes < 32 << 20
    assert tier.num_evictions >= 32
    assert tier.read([blocks[-1].key]) == [blocks[-1]]
    tier.check_invariants()


def test_a_disk_that_others_filled_takes_blocks_again_once_there_is_room(
    open_tier: OpenTier, disk: SmallDisk
) -> None:
    now = 0.0
    tier = open_tier(
        disk.path / "nvme", budget_bytes=1 << 30, segment_bytes=4 << 20, clock=lambda: now
    )
    disk.fill()
    block = make_block("a", num_bytes=1 << 18)
    assert tier.append([block]) == 0

    disk.make_room()
    now += RETRY_SECONDS
    assert tier.append([block]) == 1
    assert tier.read([block.key]) == [block]
