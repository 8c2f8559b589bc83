"""A folder that is removed while it is in use is made again; what it had is held no more."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.stored_blocks import make_block, make_key

from pagoda_kvstore.block import BlockKey
from pagoda_kvstore.tiers.device_state import RETRY_SECONDS
from pagoda_kvstore.tiers.nvme import NvmeTier
from pagoda_kvstore.tiers.nvme_folder import NvmeFolder
from pagoda_kvstore.tiers.segment import HEADER_BYTES, RECORD_HEADER_BYTES
from pagoda_kvstore.tiers.write_behind import WriteBehind

SEGMENT_BYTES = HEADER_BYTES + 4 * (RECORD_HEADER_BYTES + 1000)


class Folder:
    """A tier over a folder, the keys that it says it holds, and the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0.0
        self.held: set[BlockKey] = set()
        self.is_empty = threading.Event()
        self.on_stored: Callable[[BlockKey], object] = lambda _: None
        self.tier = NvmeTier(
            NvmeFolder(path),
            budget_bytes=4 * SEGMENT_BYTES,
            segment_bytes=SEGMENT_BYTES,
            on_change=self._on_change,
            clock=lambda: self.now,
        )

    def _on_change(self, key: BlockKey, is_stored: bool) -> None:
        (self.held.add if is_stored else self.held.discard)(key)
        if not self.held:
            self.is_empty.set()
        if is_stored:
            self.on_stored(key)

    def put(self, names: str) -> int:
        return self.tier.append([make_block(name) for name in names])

    def remove(self) -> None:
        shutil.rmtree(self.path)


def keys(names: str) -> set[BlockKey]:
    return {make_key(name) for name in names}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "nvme")
    yield folder
    folder.tier.close()


def test_what_it_had_is_forgotten_and_new_blocks_are_kept(folder: Folder) -> None:
    folder.put("abcdef")
    folder.remove()

    assert folder.put("gh") == 2

    assert folder.held == keys("gh")
    assert folder.tier.read([make_key("g"), make_key("h")]) == [make_block("g"), make_block("h")]
    assert folder.tier.read([make_key("a")]) == []
    folder.tier.check_invariants()


def test_no_bytes_of_it_count(folder: Folder) -> None:
    folder.put("abcdef")
    folder.remove()
    folder.tier.append([])
    assert (folder.tier.used_bytes, len(folder.tier)) == (0, 0)


def test_the_first_read_of_it_forgets_all(folder: Folder) -> None:
    folder.put("abcdef")
    folder.remove()
    assert folder.tier.read([make_key("f")]) == []
    assert folder.held == set()


def test_the_log_says_so_once(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder.put("abcdefghijkl")
    folder.remove()
    with caplog.at_level(logging.INFO):
        for name in "afk":
            folder.tier.read([make_key(name)])
        folder.put("mn")
        folder.put("op")
    assert caplog.messages == [
        f"{folder.path} is gone, with 12 blocks",
        f"{folder.path} was gone, and is made again",
    ]


def test_it_may_go_between_two_blocks(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.put("abcd")  # a segment is full: the next block opens another
    choose_writer = folder.tier._writer_with_room

    def remove_first(*args: object) -> object:
        monkeypatch.undo()
        folder.remove()
        return choose_writer(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(folder.tier, "_writer_with_room", remove_first)
    assert folder.put("ef") == 2
    assert folder.held == keys("ef")
    folder.tier.check_invariants()


def test_it_is_tried_again_while_it_cannot_be_made(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.put("ab")
    folder.remove()
    folder.path.write_text("somebody's file")
    for _ in range(3):
        assert folder.put("c") == 0
        folder.now += RETRY_SECONDS
    assert (folder.held, folder.tier.num_dropped) == (set(), 3)
    assert sum("takes no blocks" in message for message in caplog.messages) == 1

    folder.path.unlink()
    assert folder.put("c") == 1
    folder.tier.check_invariants()


def test_segments_of_another_disk_in_its_place_are_found(folder: Folder, tmp_path: Path) -> None:
    other = Folder(tmp_path / "other")
    other.put("mnopqr")
    other.tier.close()
    folder.put("abcd")
    folder.remove()
    other.path.rename(folder.path)

    assert folder.put("s") == 1

    assert folder.held == keys("mnopqrs")
    folder.tier.check_invariants()


def test_nothing_needs_to_be_written_to_find_out(folder: Folder) -> None:
    folder.put("abcdef")
    folder.remove()
    writes = WriteBehind(folder.tier, max_queue_bytes=1 << 20, look_seconds=0.001)
    assert folder.is_empty.wait(60)
    writes.close(60)
    assert folder.tier.used_bytes == 0


def test_a_reader_may_find_damage_while_a_folder_is_taken_again(
    folder: Folder, tmp_path: Path
) -> None:
    folder.put("abcd")
    moved = tmp_path / "moved"
    shutil.copytree(folder.path, moved)
    (segment,) = moved.glob("*.seg")
    content = segment.read_bytes()
    segment.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # of the last block
    folder.remove()
    moved.rename(folder.path)
    folder.on_stored = lambda _: folder.tier.read([make_key(name) for name in "abcd"])

    folder.put("")

    assert len(folder.tier) == 3


def test_a_reader_that_missed_the_folder_takes_nothing_of_the_one_that_came(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put("abcd")
    shutil.copytree(folder.path, tmp_path / "moved")
    folder.remove()
    is_held = NvmeFolder.is_held

    def is_held_but_late(nvme: NvmeFolder) -> bool:
        """As a reader that is interrupted after it has looked."""
        found = is_held(nvme)
        monkeypatch.setattr(NvmeFolder, "is_held", is_held)
        (tmp_path / "moved").rename(folder.path)
        folder.put("")
        return found

    monkeypatch.setattr(NvmeFolder, "is_held", is_held_but_late)
    folder.tier.read([make_key("a")])

    assert len(folder.tier) == 4
