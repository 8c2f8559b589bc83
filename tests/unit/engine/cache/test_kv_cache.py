import threading
from dataclasses import replace

import pytest
import torch
from support.kv_pools import CPU, LAYOUT, fill, make_cache, maps_of

from pagoda_engine import KvCache, KvLayout
from pagoda_engine.cache.copy_lanes import CopyLanes, chunks
from pagoda_engine.cache.peer_pool import PoolExport, SharedMemoryPool
from pagoda_engine.cache.shared_memory import SharedMemory
from pagoda_kernels.kv.block_digest import digest_blocks

LAYERS = [None, range(0, 1), range(1, 3), range(0, 3)]


@pytest.fixture(params=["direct", "staged", "shared"])
def cache(request: pytest.FixtureRequest) -> KvCache:
    """Blocks in private memory, behind a GPU's lanes (two blocks at a time), in shared memory."""
    fields = {}
    if request.param == "staged":
        fields = {"lanes": CopyLanes(CPU, staging_bytes=2 * LAYOUT.block_bytes + 1)}
    elif request.param == "shared":
        fields = {"memory": SharedMemory(5 * LAYOUT.block_bytes)}
    return fill(KvCache(LAYOUT, 5, CPU, **fields))


def test_layout_names_everything_that_two_engines_must_agree_on() -> None:
    assert LAYOUT.name == "kv2-L3-HK2-D8-bfloat16-bs4"


def test_block_bytes_is_the_size_of_all_layers() -> None:
    assert LAYOUT.block_bytes == 2 * 3 * 4 * 2 * 8 * 2


def test_a_latent_is_one_plane_in_everything_that_tells_or_moves_kv() -> None:
    latent = KvLayout(3, 4, 1, 40, torch.bfloat16, num_planes=1)
    assert latent.name == "kv1-L3-HK1-D40-bfloat16-bs4"
    assert latent.block_bytes == 3 * 4 * 40 * 2
    source, cache = fill(KvCache(latent, 5, CPU)), fill(KvCache(latent, 5, CPU), seed=2)
    assert [plane.shape for plane in cache.layer(1)] == [(5, 4, 1, 40)]
    layers = range(1, 3)
    rows, digests = source.read_blocks_with_digest([3, 0], layers)
    assert rows.shape == (2, latent.block_bytes * 2 // 3)
    assert rows[0].numpy().tobytes() == next(source.host_rows([3], layers)).tobytes()
    assert torch.equal(digests, source.digest_blocks([3, 0], layers))
    assert cache.write_blocks([1, 2], rows, layers, expected=digests) == []
    assert torch.equal(cache.tensor[:, 1:, [1, 2]], source.tensor[:, 1:, [3, 0]])
    shared = fill(KvCache(latent, 5, CPU, memory=SharedMemory(5 * latent.block_bytes)))
    pool = SharedMemoryPool(PoolExport(shared).handle, cache)
    assert torch.equal(pool.read([3, 0], layers), rows)
    expected = source.digest_blocks([4])
    assert cache.copy_blocks(source.tensor, [4], [0], expected=expected) == []
    assert torch.equal(cache.tensor[:, :, 0], source.tensor[:, :, 4])


@pytest.mark.parametrize("is_shared", [False, True])
def test_new_cache_is_zero(is_shared: bool) -> None:
    memory = SharedMemory(2 * LAYOUT.block_bytes) if is_shared else None
    assert not KvCache(LAYOUT, 2, CPU, memory=memory).tensor.any()


def test_layer_is_a_view_of_keys_and_values() -> None:
    cache = make_cache()
    k, v = cache.layer(1)
    assert k.shape == (5, 4, 2, 8)
    assert k.data_ptr() == cache.tensor[0, 1].data_ptr()
    assert v.data_ptr() == cache.tensor[1, 1].data_ptr()


@pytest.mark.parametrize("layers", LAYERS)
def test_read_blocks_returns_each_block_as_one_run_of_bytes(
    cache: KvCache, layers: range | None
) -> None:
    blocks = cache.read_blocks([3, 0, 4], layers)
    assert blocks.dtype == torch.uint8
    assert blocks.is_contiguous()
    num_layers = 3 if layers is None else len(layers)
    assert blocks.shape == (3, num_layers * LAYOUT.block_bytes // 3)
    typed = blocks.view(torch.bfloat16).view(3, 2, num_layers, *LAYOUT.block_shape[2:])
    chosen = cache.tensor if layers is None else cache.tensor[:, layers.start : layers.stop]
    for row, block_id in enumerate([3, 0, 4]):
        assert torch.equal(typed[row], chosen[:, :, block_id])


@pytest.mark.parametrize("layers", LAYERS)
def test_all_ways_to_read_agree(cache: KvCache, layers: range | None) -> None:
    ids = [3, 0, 4, 1]
    blocks = cache.read_blocks(ids, layers)
    rows, digests = cache.read_blocks_with_digest(ids, layers)
    assert torch.equal(rows, blocks)
    assert torch.equal(digests, digest_blocks(blocks))
    assert torch.equal(cache.digest_blocks(ids, layers), digests)
    assert [row.tobytes() for row in cache.host_rows(ids, layers)] == [
        block.numpy().tobytes() for block in blocks
    ]


@pytest.mark.parametrize("layers", LAYERS)
def test_write_blocks_is_the_inverse_of_read_blocks(cache: KvCache, layers: range | None) -> None:
    source, before = fill(make_cache(), seed=2), cache.tensor.clone()
    assert cache.write_blocks([4, 1, 2], source.read_blocks([0, 2, 3], layers), layers) == []
    chosen = layers or range(3)
    for layer in range(3):
        expected = before[:, layer].clone()
        if layer in chosen:
            expected[:, [4, 1, 2]] = source.tensor[:, layer, [0, 2, 3]]
        assert torch.equal(cache.tensor[:, layer], expected)


def test_write_blocks_leaves_out_what_has_another_digest(cache: KvCache) -> None:
    source, before = fill(make_cache(), seed=2), cache.tensor.clone()
    blocks, expected = source.read_blocks_with_digest([0, 1, 2, 3])
    blocks[1, 5] ^= 1
    expected[3, 0] ^= 1

    assert cache.write_blocks([4, 3, 2, 1], blocks, expected=expected) == [1, 3]

    assert torch.equal(cache.tensor[:, :, [3, 1]], before[:, :, [3, 1]])
    assert torch.equal(cache.tensor[:, :, [4, 2]], source.tensor[:, :, [0, 2]])


@pytest.mark.parametrize("layers", LAYERS)
def test_copy_blocks_from_another_pool(cache: KvCache, layers: range | None) -> None:
    other = fill(make_cache(7), seed=9)
    before = cache.tensor.clone()
    expected = other.digest_blocks([6, 0, 3], layers)
    assert cache.copy_blocks(other.tensor, [6, 0, 3], [1, 4, 2], layers, expected=expected) == []
    assert torch.equal(cache.part(layers)[:, :, [1, 4, 2]], other.part(layers)[:, :, [6, 0, 3]])
    assert torch.equal(cache.tensor[:, :, [0, 3]], before[:, :, [0, 3]])


def test_copy_blocks_leaves_zeros_where_a_digest_differs(cache: KvCache) -> None:
    other = fill(make_cache(), seed=9)
    expected = other.digest_blocks([0, 1], range(1, 3))
    other.tensor[0, 1, 1, 0, 0, 0] = float("nan")
    bad = cache.copy_blocks(other.tensor, [0, 1], [2, 3], range(1, 3), expected=expected)
    assert bad == [1]
    assert not cache.tensor[:, 1:3, 3].any()
    assert torch.equal(cache.tensor[:, 1:3, 2], other.tensor[:, 1:3, 0])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_blocks_of_one_byte_an_element_go_every_way(dtype: torch.dtype) -> None:
    layout = replace(LAYOUT, dtype=dtype, scales="0a1b")
    assert layout.name.endswith(f"{str(dtype).removeprefix('torch.')}-bs4-s0a1b")
    assert layout.block_bytes * 2 == LAYOUT.block_bytes
    memory = SharedMemory(5 * layout.block_bytes)
    source, cache = KvCache(layout, 5, CPU, memory=memory), KvCache(layout, 5, CPU)
    generator = torch.Generator().manual_seed(3)
    source.tensor.view(torch.uint8).random_(0, 127, generator=generator)
    rows, digests = source.read_blocks_with_digest([3, 0])
    assert cache.write_blocks([1, 2], rows, expected=digests) == []
    assert torch.equal(cache.read_blocks([1, 2]), rows)
    assert torch.equal(SharedMemoryPool(PoolExport(source).handle, cache).read([3, 0], None), rows)
    digests[1, 0] ^= 1
    assert cache.copy_blocks(source.tensor, [3, 0], [4, 1], expected=digests) == [1]
    assert torch.equal(cache.read_blocks([4])[0], rows[0])
    assert not cache.read_blocks([1]).any()
    cache.duplicate_blocks(torch.tensor([4]), torch.tensor([0]))
    assert torch.equal(cache.read_blocks([0])[0], rows[0])


def test_write_blocks_takes_bytes_at_any_address(cache: KvCache) -> None:
    source = fill(make_cache(), seed=2)
    message = torch.zeros(1 + LAYOUT.block_bytes, dtype=torch.uint8)
    message[1:] = source.read_blocks([2])[0]
    cache.write_blocks([0], message[1:][None])
    assert torch.equal(cache.tensor[:, :, 0], source.tensor[:, :, 2])


def test_no_blocks_is_no_work(cache: KvCache) -> None:
    blocks = cache.read_blocks([])
    assert blocks.shape == (0, LAYOUT.block_bytes)
    assert cache.write_blocks([], blocks) == []


@pytest.mark.parametrize(
    "blocks",
    [
        torch.zeros(1, 3, dtype=torch.uint8),
        torch.zeros(2, LAYOUT.block_bytes, dtype=torch.uint8),
        torch.zeros(1, LAYOUT.block_bytes, dtype=torch.int8),
    ],
    ids=["size", "count", "dtype"],
)
def test_write_blocks_refuses_another_shape(blocks: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=f"expected torch.uint8 \\(1, {LAYOUT.block_bytes}\\)"):
        make_cache().write_blocks([0], blocks)


@pytest.mark.parametrize("layers", [range(0), range(2, 4), range(-1, 2), range(0, 3, 2)])
def test_layers_that_the_cache_does_not_have_are_refused(layers: range) -> None:
    with pytest.raises(ValueError, match=r"consecutive ones in \[0, 3\)"):
        make_cache().read_blocks([0], layers)


def test_shared_memory_lives_as_long_as_the_cache() -> None:
    memory = SharedMemory(2 * LAYOUT.block_bytes)
    handle, cache = memory.handle, KvCache(LAYOUT, 2, CPU, memory=memory)
    del memory
    cache.tensor.fill_(1)
    assert len(maps_of(handle)) == 1
    del cache
    assert maps_of(handle) == []


def test_a_third_copy_waits_for_a_lane() -> None:
    lanes = CopyLanes(CPU, staging_bytes=16)
    got_one = threading.Event()

    def borrow() -> None:
        with lanes.borrow():
            got_one.set()

    with lanes.borrow():
        with lanes.borrow():
            thread = threading.Thread(target=borrow)
            thread.start()
            assert not got_one.wait(0.05)
        assert got_one.wait(60)
    thread.join(60)


def test_a_lane_comes_back_after_an_error() -> None:
    lanes = CopyLanes(CPU, staging_bytes=16)
    for _ in range(3):
        with pytest.raises(ValueError, match="bad copy"), lanes.borrow():
            raise ValueError("bad copy")
    with lanes.borrow(), lanes.borrow():
        pass


def test_chunks_cut_by_bytes() -> None:
    assert list(chunks(5, 10, 25)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(chunks(2, 10, 5)) == [slice(0, 1), slice(1, 2)]
    assert list(chunks(0, 10, 5)) == []
