"""Layers whose KV heads differ in number and size: where they lie, and that their blocks move."""

import itertools

import pytest
import torch
from support.kv_pools import fill

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.layer_groups import layer_groups
from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.cache.peer_pool import (
    PeerPoolError,
    PoolExport,
    exportable_cache,
    open_peer_pool,
)

CPU = torch.device("cpu")
NARROW, WIDE, ODD = LayerHeads(2, 16), LayerHeads(1, 64), LayerHeads(3, 8)
BLOCK_SIZE, NUM_BLOCKS = 4, 6
HEADS = (NARROW, ODD, NARROW, WIDE)
WINDOWED = (NARROW, NARROW, NARROW, WIDE, NARROW)


def layout_of(
    heads: tuple[LayerHeads, ...] = HEADS, dtype: torch.dtype = torch.float32
) -> KvLayout:
    return KvLayout.of_mixed(BLOCK_SIZE, heads, dtype)


def windowed_layout() -> KvLayout:
    windows = [None if each == WIDE else 9 for each in WINDOWED]
    groups = layer_groups(windows, [each.width for each in WINDOWED])
    return KvLayout.of_mixed(BLOCK_SIZE, WINDOWED, torch.float32, groups=groups)


def planes_of(cache: KvCache) -> list[torch.Tensor]:
    mixed = cache.layout.mixed
    assert mixed is not None
    return [plane for layer in range(len(mixed.heads)) for plane in cache.layer(layer)]


def test_every_layer_has_numbers_of_its_own() -> None:
    cache = KvCache(layout_of(), NUM_BLOCKS, CPU)
    planes = planes_of(cache)
    for number, plane in enumerate(planes):
        plane.fill_(number + 1)
    shapes = [(NUM_BLOCKS, BLOCK_SIZE, each.num_kv_heads, each.head_dim) for each in HEADS]
    assert [plane.shape for plane in planes] == [shape for shape in shapes for _ in "kv"]
    assert all((plane == number + 1).all() for number, plane in enumerate(planes))


def test_a_block_takes_what_its_layers_take() -> None:
    heads = (NARROW, WIDE, NARROW)
    assert layout_of(heads).block_bytes == BLOCK_SIZE * 2 * sum(each.width for each in heads) * 4
    assert layout_of(heads, torch.int8).block_bytes * 4 == layout_of(heads).block_bytes
    padded = layout_of()  # to whole tokens of the layer with 24 numbers
    assert padded.block_bytes % (4 * 24) == padded.block_bytes % (4 * 64) == 0


def test_names_tell_sizes_and_orders_apart() -> None:
    orders = [HEADS, HEADS[::-1], HEADS[:3], (NARROW, NARROW, WIDE), (NARROW, WIDE, WIDE)]
    assert len({layout_of(heads).name for heads in orders}) == len(orders)
    assert layout_of().name != windowed_layout().name


@pytest.mark.parametrize("layout", [layout_of(), windowed_layout()], ids=["whole", "in parts"])
def test_blocks_go_out_and_come_in(layout: KvLayout) -> None:
    source, target = (KvCache(layout, NUM_BLOCKS, CPU) for _ in range(2))
    fill(source)
    ids = [4, 0, 3]
    if source.part_places is not None:  # the parts of some blocks lie anywhere
        for cache, first in ((source, 6), (target, 12)):
            assert cache.part_places is not None
            for row, block in enumerate(ids[:2]):
                cache.part_places[block] = first + 2 * row, first + 2 * row + 1
    rows = source.read_blocks(ids)
    assert rows.shape == (3, layout.block_bytes)
    assert [bytes(row) for row in source.host_rows(ids)] == [bytes(row.numpy()) for row in rows]
    target.write_blocks(ids, rows)
    assert torch.equal(target.read_blocks(ids), rows)
    full = WINDOWED.index(WIDE)
    layers = range(len(HEADS)) if source.part_places is None else [full]
    for layer in layers:
        for ours, theirs in zip(source.layer(layer), target.layer(layer), strict=True):
            assert torch.equal(ours[ids], theirs[ids])


def test_a_block_with_another_digest_is_not_written() -> None:
    source, target = (KvCache(layout_of(), NUM_BLOCKS, CPU) for _ in range(2))
    fill(source)
    rows, digests = source.read_blocks_with_digest([1, 2])
    assert torch.equal(source.digest_blocks([1, 2]), digests)
    digests[1, 0] ^= 1
    assert target.write_blocks([0, 5], rows, expected=digests) == [1]
    assert torch.equal(target.read_blocks([0]), rows[:1])
    assert not target.read_blocks([5]).any()
    assert target.copy_blocks(source.tensor, [1, 2], [3, 4], expected=digests) == [1]
    assert torch.equal(target.read_blocks([3]), rows[:1])
    assert not target.read_blocks([4]).any()


def test_windowed_layers_take_as_many_bytes_as_the_others() -> None:
    layout = windowed_layout()
    assert layout.groups is not None
    assert layout.num_parts == 3  # two of the four fit beside the wide one, each
    assert layout.place_bytes == BLOCK_SIZE * 2 * WIDE.width * 4
    assert layout.block_bytes == 3 * layout.place_bytes
    whole = layout.in_one_part()
    assert whole == layout_of(WINDOWED)
    assert layout.first_part == range(1)


def test_layers_of_a_part_do_not_overlap() -> None:
    layout = windowed_layout()
    assert layout.groups is not None
    taken: dict[int, list[tuple[int, int]]] = {}
    for (part, _), (k, v), each in zip(
        layout.groups.places, layout.offsets(), WINDOWED, strict=True
    ):
        size = BLOCK_SIZE * each.width
        taken.setdefault(part, []).extend([(k, k + size), (v, v + size)])
    for ranges in taken.values():
        ordered = sorted(ranges)
        assert all(end <= first for (_, end), (first, _) in itertools.pairwise(ordered))
        assert ordered[-1][1] * 4 <= layout.place_bytes


@pytest.mark.parametrize(
    ("widths", "count", "part", "num_windowed"),
    [
        # As many parts as windowed layers of the same bytes make (Gemma 4 31B, E2B).
        ((4096, 2048), (50, 10), 5, 10),
        ((256, 512), (12, 3), 6, 2),
        # A larger part leaves less room unused than a smaller one (26B A4B).
        ((2048, 1024), (25, 5), 3, 9),
    ],
)
def test_parts_are_cut_so_that_blocks_are_small(
    widths: tuple[int, int], count: tuple[int, int], part: int, num_windowed: int
) -> None:
    windows = [*[1024] * count[0], *[None] * count[1]]
    groups = layer_groups(windows, [*[widths[0]] * count[0], *[widths[1]] * count[1]])
    assert groups is not None
    assert (groups.group_size, groups.num_windowed) == (part, num_windowed)


@pytest.mark.parametrize(
    ("windows", "widths"),
    [
        ((9, 9, None), (8, 16, 8)),  # windowed layers are not alike
        ((9, None), (8, 32)),  # together smaller than the other
    ],
)
def test_layers_that_gain_nothing_have_no_groups(
    windows: tuple[int | None, ...], widths: tuple[int, ...]
) -> None:
    assert layer_groups(windows, widths) is None


def test_a_peer_reads_blocks_where_they_lie() -> None:
    owner = fill(exportable_cache(layout_of(), NUM_BLOCKS, CPU))
    export = PoolExport(owner)
    pool = open_peer_pool(export.handle, KvCache(layout_of(), 1, CPU))
    assert torch.equal(pool.read([5, 1]), owner.read_blocks([5, 1]))
    with pytest.raises(PeerPoolError, match="the pool's layout is"):
        open_peer_pool(export.handle, KvCache(layout_of(HEADS[::-1]), 1, CPU))
    pool.close()
    export.close()
