import pytest

from pagoda_worker.kv_transfer import nixl_pool


@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
@pytest.mark.parametrize("found", [None, object()])
def test_reads_take_a_buffer_where_nixl_is_installed(
    chunk_bytes: int, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nixl_pool, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(nixl_pool, "find_spec", lambda name: found)

    expected = max(chunk_bytes, 4096) if found else 0
    assert nixl_pool.read_buffer_bytes(4096) == expected
