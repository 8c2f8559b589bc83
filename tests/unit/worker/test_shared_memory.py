import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pagoda.worker.kv_transfer.shared_memory import (
    Arena,
    ArenaError,
    ArenaReader,
    remove_stale_arenas,
)

SLOT = 256


@pytest.fixture
def arena(tmp_path: Path):
    arena = Arena(slot_bytes=SLOT, max_bytes=4 * SLOT, folder=tmp_path)
    yield arena
    arena.close()


@pytest.fixture
def reader(arena: Arena, tmp_path: Path) -> ArenaReader:
    return ArenaReader(arena.name, slot_bytes=SLOT, folder=tmp_path)


def block(value: int) -> np.ndarray:
    return np.full(SLOT, value, dtype=np.uint8)


def test_block_goes_across_and_its_slot_is_free_again(arena: Arena, reader: ArenaReader) -> None:
    offset = arena.put(arena.new_ticket(), block(7))
    out = block(0)
    assert arena.num_used_slots == 1

    reader.take(offset, out)

    assert (out == 7).all()
    assert arena.num_used_slots == 0


def test_full_arena_takes_nothing_until_a_slot_is_taken(arena: Arena, reader: ArenaReader) -> None:
    ticket = arena.new_ticket()
    offsets = [arena.put(ticket, block(i)) for i in range(4)]
    assert arena.put(ticket, block(9)) is None

    reader.take(offsets[2], block(0))

    assert arena.put(ticket, block(9)) == offsets[2]


def test_release_frees_one_push_only(arena: Arena) -> None:
    first, second = arena.new_ticket(), arena.new_ticket()
    arena.put(first, block(1))
    arena.put(second, block(2))
    arena.put(first, block(3))

    arena.release(first)

    assert arena.num_used_slots == 1


def test_only_its_user_may_read_the_file(arena: Arena, tmp_path: Path) -> None:
    assert (tmp_path / arena.name).stat().st_mode & 0o777 == 0o600


def test_close_removes_the_file_and_readers_keep_theirs(
    arena: Arena, reader: ArenaReader, tmp_path: Path
) -> None:
    offset = arena.put(arena.new_ticket(), block(5))
    arena.close()
    assert list(tmp_path.iterdir()) == []
    out = block(0)
    reader.take(offset, out)
    assert (out == 5).all()


@pytest.mark.parametrize("offset", [0, -1, 4096 + 1, 4096 + 4 * SLOT, 2**60])
def test_wrong_offset_is_refused(reader: ArenaReader, offset: int) -> None:
    with pytest.raises(ArenaError, match="no slot"):
        reader.take(offset, block(0))


@pytest.mark.parametrize("name", ["../etc/passwd", "", "pagoda-kv-xyz", "pagoda-kv-" + "0" * 32])
def test_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArenaError):
        ArenaReader(name, slot_bytes=SLOT, folder=tmp_path)


def test_other_layout_is_refused(arena: Arena, tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="slots of 512 bytes"):
        ArenaReader(arena.name, slot_bytes=512, folder=tmp_path)


def test_link_is_not_followed(arena: Arena, tmp_path: Path) -> None:
    name = "pagoda-kv-" + "0" * 32
    (tmp_path / name).symlink_to(arena.name)
    with pytest.raises(ArenaError):
        ArenaReader(name, slot_bytes=SLOT, folder=tmp_path)


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    name = "pagoda-kv-" + "0" * 32
    (tmp_path / name).write_bytes(bytes(8192))
    with pytest.raises(ArenaError, match="no arena"):
        ArenaReader(name, slot_bytes=SLOT, folder=tmp_path)


def test_no_room_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="hold no block"):
        Arena(slot_bytes=SLOT, max_bytes=SLOT - 1, folder=tmp_path)


def test_arena_of_a_killed_process_is_removed_and_a_living_ones_stays(
    arena: Arena, tmp_path: Path
) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from pagoda.worker.kv_transfer.shared_memory import Arena;"
        f"Arena(slot_bytes=64, max_bytes=640, folder=Path({str(tmp_path)!r}));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2

    assert remove_stale_arenas(tmp_path) == 1

    assert [path.name for path in tmp_path.iterdir()] == [arena.name]
