"""The tensor that holds all KV of one engine, and its bytes block by block.

Knows bytes, of the shapes that a `KvLayout` has. Knows nothing of who owns a block (see
`block_pool`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pagoda_engine.cache.copy_lanes import (
    STAGING_BYTES,
    CopyLanes,
    borrowed,
    chunks,
)
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.shared_memory import ByteArray, SharedMemory
from pagoda_engine.cache.windowed_parts import NO_PLACE, place_table
from pagoda_kernels import copy_blocks, digest_pool, gather_blocks, scatter_blocks
from pagoda_kernels.host_copy import to_device
from pagoda_kernels.huge_pages import huge_zeros
from pagoda_kernels.kv.block_digest import DIGEST_BYTES


class KvCache:
    """All KV blocks of an engine on its device.

    Reading and writing blocks may be done by any thread, as long as the step loop does not write
    the same blocks: a reader holds blocks that are complete, a writer blocks that were reserved for
    its import. On CUDA both run on side streams and the calling thread waits for its own copy only.

    ``layers`` names consecutive layers as a range, None all of them; where blocks are in parts it
    is `KvLayout.first_part` or None.

    Attributes:
        offsets: ``[num_layers, 2]`` int64, cpu: elements before K and before V of each layer in a
            block, or in a part of it, where heads of layers differ; else None.
        part_places: where the windowed parts of blocks are, as the engine's `BlockPool` has it;
            None where blocks have one part. What a block lacks is read as zeros, and is not
            written.
    """

    def __init__(
        self,
        layout: KvLayout,
        num_blocks: int,
        device: torch.device,
        *,
        memory: SharedMemory | None = None,
        lanes: CopyLanes | None = None,
    ) -> None:
        """Allocate zeros.

        Args:
            layout: of a block.
            num_blocks: how many.
            device: cpu or cuda.
            memory: where they lie, `num_blocks` times the size of a block or more; cpu only. Kept
                as an attribute, never closed.
            lanes: for reads and writes; None: direct copies on cpu, lanes of its own on cuda.
        """
        self.layout = layout
        self.num_blocks = num_blocks
        self.memory = memory
        shape = layout.pool_shape(num_blocks)
        # Zeros, not empty: a masked slot times a NaN that lies there would still be a NaN.
        if memory is None and device.type == "cuda":
            self.tensor = torch.zeros(shape, dtype=layout.dtype, device=device)
        else:
            num_bytes = num_blocks * layout.block_bytes
            # Written at once: memory that is not there should be missed now, not in a step. What is
            # shared is taken page by page, as its blocks are written.
            pool = huge_zeros(num_bytes).zero_() if memory is None else memory.tensor[:num_bytes]
            self.tensor = pool.view(layout.dtype).view(shape)
        if lanes is None and device.type == "cuda":
            lanes = CopyLanes(device, staging_bytes=max(STAGING_BYTES, layout.block_bytes))
            torch.cuda.current_stream(device).synchronize()  # no import is written before the zeros
        self.lanes = lanes
        self._layers = list(_layers_of(self.tensor, layout))
        self.offsets = None if layout.mixed is None else torch.tensor(layout.offsets())
        self.part_places = None
        if layout.groups is not None:
            self.part_places = place_table(self.tensor.shape[2], layout.num_parts - 1)

    @property
    def block_bytes(self) -> int:
        """Size of one block, all layers."""
        return self.layout.block_bytes

    @property
    def place_bytes(self) -> int:
        """Size of one part of a block, which is all of it where it has one."""
        return self.layout.place_bytes

    @property
    def num_layers(self) -> int:
        """Layers of one block that can be told apart."""
        return self.layout.num_layers

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self.tensor.device

    def layer(self, layer_index: int) -> tuple[torch.Tensor, ...]:
        """Return views of one layer's planes, each ``[num_blocks, block_size, HK, D]``."""
        groups = self.layout.groups
        if groups is None or self.layout.mixed is not None:
            return self._layers[layer_index]
        return self._layers[groups.places[layer_index][1]]

    @property
    def all_layers(self) -> torch.Tensor:
        """View ``[planes, num_layers, num_blocks, block_size, HK, D]``, dense in a block.

        With groups ``[planes, group_size, num_places, ...]``.
        """
        return self.tensor

    def part_bytes(self, layers: range | None = None) -> int:
        """Size of some layers of one block.

        Raises:
            ValueError: these are not consecutive layers of the cache, or none.
        """
        if layers is None:
            return self.block_bytes
        if self.part_places is not None:
            if layers != self.layout.first_part:
                raise ValueError(f"layers are {layers}, expected {self.layout.first_part} or all")
            return self.layout.place_bytes
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= self.num_layers:
            raise ValueError(
                f"layers are {layers}, expected consecutive ones in [0, {self.num_layers})"
            )
        return self.block_bytes // self.num_layers * len(layers)

    def read_blocks(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """Copy blocks out: uint8 ``[N, part_bytes]``, cpu, contiguous."""
        if self.part_places is not None:
            return self._read_in_parts(block_ids, layers)
        if self.lanes is None and block_ids:
            return _as_rows(gather_blocks(self.part(layers), self._ids(block_ids)))
        return self.read_blocks_with_digest(block_ids, layers)[0]

    def host_rows(
        self, block_ids: Sequence[int], layers: range | None = None
    ) -> Iterator[ByteArray]:
        """Yield the bytes of each block, ``[part_bytes]``; cpu only, unless they are in parts.

        All may be the same array, which stays in the processor's cache: use one before the next.
        """
        if self.part_places is not None:
            for block_id in block_ids:
                in_parts: ByteArray = self._read_in_parts([block_id], layers)[0].numpy()
                yield in_parts
            return
        row = np.empty(self.part_bytes(layers), dtype=np.uint8)
        runs = as_runs(self.part(layers))
        block = row.reshape(*runs.shape[:2], -1)
        for block_id in block_ids:
            block[...] = runs[:, :, block_id]
            yield row

    def read_blocks_with_digest(
        self, block_ids: Sequence[int], layers: range | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`read_blocks`, and uint8 ``[N, 16]``, cpu: `pagoda_kernels.digest_blocks` of each block.

        On CUDA the digest is taken on the device, so it guards the way from there.
        """
        view, part_bytes = self.part(layers), self.part_bytes(layers)
        rows = torch.empty((len(block_ids), part_bytes), dtype=torch.uint8)
        digests = torch.empty((len(block_ids), DIGEST_BYTES), dtype=torch.uint8)
        with borrowed(self.lanes) as lane:
            for some in chunks(len(block_ids), part_bytes, lane.chunk_bytes(rows)):
                blocks, found = gather_blocks(view, self._ids(block_ids[some]), with_digest=True)
                lane.to_host(_as_rows(blocks), rows[some])
                digests[some] = found.cpu()
        return rows, digests

    def digest_blocks(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """Digest blocks where they are: as `read_blocks_with_digest`, without the bytes."""
        view = self.part(layers)
        with borrowed(self.lanes):
            return digest_pool(view, self._ids(block_ids)).cpu()

    def write_blocks(
        self,
        block_ids: Sequence[int],
        blocks: torch.Tensor,
        layers: range | None = None,
        *,
        expected: torch.Tensor | None = None,
    ) -> list[int]:
        """Copy blocks in; on return the device has them.

        Args:
            block_ids: where to, each at most once.
            blocks: uint8 ``[N, part_bytes]``, any device, as `read_blocks` returned them. Nobody
                may write to it meanwhile.
            layers: which of each block.
            expected: uint8 ``[N, 16]``, cpu: what `pagoda_kernels.digest_blocks` must find on the
                device. A block of which it finds something else is not written.

        Returns:
            The positions in `block_ids` of those that were not written.

        Raises:
            ValueError: the shape or dtype of ``blocks`` is another.
        """
        shape = (len(block_ids), self.part_bytes(layers))
        if tuple(blocks.shape) != shape or blocks.dtype != torch.uint8:
            raise ValueError(
                f"blocks are {blocks.dtype} {tuple(blocks.shape)}, expected torch.uint8 {shape}"
            )
        if self.part_places is not None:
            assert expected is None, "blocks in parts are digested on the host"
            self._write_in_parts(block_ids, blocks, layers)
            return []
        bad = torch.zeros(len(block_ids), dtype=torch.bool)
        view = self.part(layers)
        with borrowed(self.lanes) as lane:
            for some in chunks(len(block_ids), shape[1], lane.chunk_bytes(blocks)):
                rows = lane.to_device(blocks[some], self.device)
                typed = rows.view(view.dtype).view(len(rows), *view.shape[:2], *view.shape[3:])
                ids = self._ids(block_ids[some])
                if expected is None:
                    scatter_blocks(view, ids, typed)
                else:
                    digests = expected[some].to(self.device)
                    bad[some] = scatter_blocks(view, ids, typed, expected=digests).cpu()
                lane.wait()  # its buffer is free for the next ones
        return [position for position, is_bad in enumerate(bad.tolist()) if is_bad]

    def copy_blocks(
        self,
        source: torch.Tensor,
        source_ids: Sequence[int],
        block_ids: Sequence[int],
        layers: range | None = None,
        *,
        expected: torch.Tensor,
    ) -> list[int]:
        """Copy blocks of another pool in, each byte read once and written once.

        They are verified where they lie then, so nobody may attend to them meanwhile.

        Args:
            source: ``[planes, num_layers, any, block_size, HK, D]`` on this device; it may change.
            source_ids: which of its blocks.
            block_ids: where to, each at most once.
            layers: which of each block.
            expected: as for `write_blocks`.

        Returns:
            The positions of blocks with another digest: these layers of theirs are zeros now.
        """
        view = self.part(layers)
        part = source if layers is None else source[:, layers.start : layers.stop]
        with borrowed(self.lanes):
            theirs, ours = self._ids(source_ids), self._ids(block_ids)
            digests = copy_blocks(part, theirs, view, ours)
            bad = (digests.cpu() != expected).any(1).nonzero()[:, 0].tolist()
            if bad:
                # Not left as they are: a masked slot times a NaN that came would still be a NaN.
                # As bytes: not every dtype of one byte can be filled.
                ids = self._ids([block_ids[position] for position in bad])
                view.view(torch.uint8).index_fill_(2, ids, 0)
        return bad

    def duplicate_blocks(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy blocks within the pool, as part of a step's work: nobody waits for it.

        Args:
            sources: int64 ``[N]`` on this device.
            targets: int64 ``[N]``, each once, none of them a source.
        """
        scatter_blocks(self.tensor, targets, gather_blocks(self.tensor, sources))

    def part(self, layers: range | None = None) -> torch.Tensor:
        """View ``[planes, len(layers), num_blocks, block_size, HK, D]`` of some layers."""
        self.part_bytes(layers)
        return self.tensor if layers is None else self.tensor[:, layers.start : layers.stop]

    def places_of(self, block_ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Return where the parts of each block lie, `NO_PLACE` for those that it has not."""
        table = self.part_places
        if table is None:
            return [(block_id,) for block_id in block_ids]
        return [(block_id, *table[block_id].tolist()) for block_id in block_ids]

    def _read_in_parts(self, block_ids: Sequence[int], layers: range | None) -> torch.Tensor:
        shape = len(block_ids), self.part_bytes(layers)
        num_parts = self.layout.num_parts if layers is None else 1
        rows = torch.zeros((shape[0] * num_parts, shape[1] // num_parts), dtype=torch.uint8)
        places = [place for block in self.places_of(block_ids) for place in block[:num_parts]]
        here = [row for row, place in enumerate(places) if place != NO_PLACE]
        with borrowed(self.lanes) as lane:
            for some in chunks(len(here), rows.shape[1], lane.chunk_bytes(rows)):
                found = gather_blocks(self.tensor, self._ids([places[row] for row in here[some]]))
                part = torch.empty((len(found), rows.shape[1]), dtype=torch.uint8)
                lane.to_host(_as_rows(found), part)
                rows[here[some]] = part
        return rows.view(shape)

    def _write_in_parts(
        self, block_ids: Sequence[int], blocks: torch.Tensor, layers: range | None
    ) -> None:
        if not block_ids:
            return
        num_parts = self.layout.num_parts if layers is None else 1
        rows = blocks.reshape(len(block_ids) * num_parts, -1)
        places = [place for block in self.places_of(block_ids) for place in block[:num_parts]]
        here = [row for row, place in enumerate(places) if place != NO_PLACE]
        with borrowed(self.lanes) as lane:
            for some in chunks(len(here), rows.shape[1], lane.chunk_bytes(rows)):
                part = lane.to_device(rows[here[some]], self.device)
                typed = part.view(self.layout.dtype).view(len(part), *self.layout.block_shape)
                scatter_blocks(self.tensor, self._ids([places[row] for row in here[some]]), typed)
                lane.wait()

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        return to_device([np.array(block_ids, dtype=np.int64)], self.device)[0]


def _layers_of(pool: torch.Tensor, layout: KvLayout) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the planes of each layer, or of each place of a group's layers."""
    if layout.mixed is None:
        yield from zip(*(plane.unbind() for plane in pool), strict=True)
        return
    blocks = pool.flatten(3)[0, 0]
    for heads, starts in zip(layout.mixed.heads, layout.offsets(), strict=True):
        shape = len(blocks), layout.block_size, heads.num_kv_heads, heads.head_dim
        size = layout.block_size * heads.width
        yield tuple(blocks[:, start : start + size].view(shape) for start in starts)


def as_runs(pool: torch.Tensor) -> ByteArray:
    """View layers of a pool on cpu as ``[planes, num_layers, num_blocks, run_bytes]``.

    A run is what one plane of one layer of a block is.
    """
    runs = pool.view(torch.uint8).flatten(3)
    assert runs.data_ptr() == pool.data_ptr(), "the pool was copied"
    array: ByteArray = runs.numpy()
    return array


def _as_rows(blocks: torch.Tensor) -> torch.Tensor:
    """View contiguous blocks as uint8 ``[N, part_bytes]``; at least one."""
    return blocks.view(torch.uint8).view(len(blocks), -1)
