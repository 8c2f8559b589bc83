import os
from collections.abc import Iterator

import numpy as np
import pytest
from support.kv_pools import maps_of

from pagoda_engine.cache.shared_memory import SharedMemory, SharedMemoryError, open_shared_memory

NUM_BYTES = 10_000


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(NUM_BYTES)
    yield memory
    memory.close()


def handle_of(file: int, name: str = "pagoda-kv-" + "0" * 32) -> bytes:
    return f"{os.getpid()}/{file}/{name}".encode()


def test_what_is_written_is_read(memory: SharedMemory) -> None:
    array = open_shared_memory(memory.handle, num_bytes=NUM_BYTES)
    memory.tensor[5000] = 7
    assert array.shape == (NUM_BYTES,)
    assert array[5000] == 7
    assert array.sum() == 7


def test_peers_cannot_write(memory: SharedMemory) -> None:
    array = open_shared_memory(memory.handle, num_bytes=NUM_BYTES)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_only_its_user_may_open_it(memory: SharedMemory) -> None:
    file = memory.handle.decode().split("/")[1]
    assert os.stat(f"/proc/self/fd/{file}").st_mode & 0o777 == 0o600


def test_mapping_and_file_go_with_the_last_array(memory: SharedMemory) -> None:
    files = os.listdir("/proc/self/fd")
    part = open_shared_memory(memory.handle, num_bytes=NUM_BYTES)[4:8]
    assert len(maps_of(memory.handle)) == 2
    del part
    assert len(maps_of(memory.handle)) == 1  # the owner's
    assert os.listdir("/proc/self/fd") == files


def test_owners_mapping_and_files_go_with_it() -> None:
    files = os.listdir("/proc/self/fd")
    memory = SharedMemory(NUM_BYTES)
    handle, part = memory.handle, memory.tensor[4:8]
    del memory
    assert len(maps_of(handle)) == 1
    del part
    assert maps_of(handle) == []
    assert os.listdir("/proc/self/fd") == files


def test_closed_memory_cannot_be_opened_and_stays_where_it_is_mapped(memory: SharedMemory) -> None:
    array = open_shared_memory(memory.handle, num_bytes=NUM_BYTES)
    memory.close()
    memory.close()
    with pytest.raises(SharedMemoryError, match="No such file"):
        open_shared_memory(memory.handle, num_bytes=NUM_BYTES)
    memory.tensor[1] = 3
    assert array[1] == 3


def test_file_that_got_the_number_since_is_refused(memory: SharedMemory) -> None:
    number = int(memory.handle.decode().split("/")[1])
    other = os.memfd_create("other")
    memory.close()
    try:
        os.dup2(other, number)
        with pytest.raises(SharedMemoryError, match="memfd:other"):
            open_shared_memory(memory.handle, num_bytes=NUM_BYTES)
        reader, writer = os.pipe()  # must not wait for a writer
        os.dup2(reader, number)
        with pytest.raises(SharedMemoryError, match="pipe:"):
            open_shared_memory(memory.handle, num_bytes=NUM_BYTES)
        os.close(reader)
        os.close(writer)
    finally:
        os.close(other)
        os.close(number)


@pytest.mark.parametrize(
    "handle",
    [b"", b"x", b"1/2", b"1/2/../../etc/passwd", b"0/1/pagoda-kv-" + b"0" * 32, b"\xff" * 64],
)
def test_nonsense_is_refused(handle: bytes) -> None:
    with pytest.raises(SharedMemoryError, match="no shared memory's handle"):
        open_shared_memory(handle, num_bytes=1)


def test_too_small_memory_is_refused(memory: SharedMemory) -> None:
    with pytest.raises(SharedMemoryError, match=r"has 10000 bytes .*, expected 10001"):
        open_shared_memory(memory.handle, num_bytes=NUM_BYTES + 1)


def test_memory_that_may_shrink_is_refused() -> None:
    name = "pagoda-kv-" + "0" * 32
    file = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096)
    try:
        with pytest.raises(SharedMemoryError, match="cut short"):
            open_shared_memory(handle_of(file), num_bytes=4096)
    finally:
        os.close(file)


def test_memory_cannot_shrink(memory: SharedMemory) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(int(memory.handle.decode().split("/")[1]), 10)


@pytest.mark.parametrize("num_bytes", [0, -1, 2**62])
def test_impossible_sizes_are_refused(num_bytes: int) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SharedMemoryError, match=f"{num_bytes} bytes of shared memory"):
        SharedMemory(num_bytes)
    assert os.listdir("/proc/self/fd") == before


def test_arrays_are_bytes(memory: SharedMemory) -> None:
    assert open_shared_memory(memory.handle, num_bytes=1).dtype == np.uint8
