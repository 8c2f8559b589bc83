"""The tensor that holds all KV of one engine, and its bytes block by block.

Knows shapes and bytes. Knows nothing of who owns a block (see `block_pool`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagoda_engine.cache.copy_lanes import (
    STAGING_BYTES,
    CopyLanes,
    borrowed,
    chunks,
)
from pagoda_engine.cache.shared_memory import ByteArray, SharedMemory
from pagoda_kernels import copy_blocks, digest_pool, gather_blocks, scatter_blocks
from pagoda_kernels.host_copy import to_device
from pagoda_kernels.huge_pages import huge_zeros
from pagoda_kernels.kv.block_digest import DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What every layer holds of a token, and so the shape of the cache.

    Of each token it holds ``num_planes`` times ``[num_kv_heads, head_dim]``: K (with RoPE applied),
    then V; or one latent that all heads share. The cache is ``[planes, num_layers, num_blocks,
    block_size, num_kv_heads, head_dim]``. One block outside the engine is the same without
    ``num_blocks``, contiguous. A part of a block is the same of some consecutive layers only.

    Numbers of one byte stand for themselves times a scale, which is in no block: ``scales`` tells
    which ones the model has. Where ``is_packed``, the bytes of a layer's block lie otherwise: as
    native attention multiplies them (``sources/packed_kv.h`` of the kernels), which nothing but its
    decoder reads.

    All that tells or moves KV follows from this: sizes, `name` and with it the identity of the KV
    and every block's hash, digests, parts.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    num_planes: int = 2
    scales: str = ""
    is_packed: bool = False

    @property
    def name(self) -> str:
        """Return what two engines must agree on before they swap blocks."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"kv{self.num_planes}-L{self.num_layers}-HK{self.num_kv_heads}-D{self.head_dim}"
            f"-{dtype}-bs{self.block_size}"
            + (f"-s{self.scales}" if self.scales else "")
            + ("-packed" if self.is_packed else "")
        )

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Return the shape of one block."""
        return (self.num_planes, self.num_layers, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Return the size of one block, all layers."""
        return math.prod(self.block_shape) * self.dtype.itemsize

    def pool_shape(self, num_blocks: int) -> tuple[int, int, int, int, int, int]:
        """Return the shape of a cache of so many blocks."""
        return (*self.block_shape[:2], num_blocks, *self.block_shape[2:])


class KvCache:
    """All KV blocks of an engine on its device.

    Reading and writing blocks may be done by any thread, as long as the step loop does not write
    the same blocks: a reader holds blocks that are complete, a writer blocks that were reserved for
    its import. On CUDA both run on side streams and the calling thread waits for its own copy only.

    ``layers`` names consecutive layers as a range, None all of them.
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
            # Written at once: memory that is not there should be missed now, not in a step.
            pool = huge_zeros(num_bytes).zero_() if memory is None else memory.tensor[:num_bytes]
            self.tensor = pool.view(layout.dtype).view(shape)
        if lanes is None and device.type == "cuda":
            lanes = CopyLanes(device, staging_bytes=max(STAGING_BYTES, layout.block_bytes))
            torch.cuda.current_stream(device).synchronize()  # no import is written before the zeros
        self.lanes = lanes
        self._layers = list(zip(*(plane.unbind() for plane in self.tensor), strict=True))

    @property
    def block_bytes(self) -> int:
        """Size of one block, all layers."""
        return self.layout.block_bytes

    @property
    def num_layers(self) -> int:
        """Layers of one block."""
        return self.layout.num_layers

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self.tensor.device

    def layer(self, layer_index: int) -> tuple[torch.Tensor, ...]:
        """Return views of one layer's planes, each ``[num_blocks, block_size, HK, D]``."""
        return self._layers[layer_index]

    @property
    def all_layers(self) -> torch.Tensor:
        """View ``[planes, num_layers, num_blocks, block_size, HK, D]``, dense in a block."""
        return self.tensor

    def part_bytes(self, layers: range | None = None) -> int:
        """Size of some layers of one block.

        Raises:
            ValueError: these are not consecutive layers of the cache, or none.
        """
        if layers is None:
            return self.block_bytes
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= self.num_layers:
            raise ValueError(
                f"layers are {layers}, expected consecutive ones in [0, {self.num_layers})"
            )
        return self.block_bytes // self.num_layers * len(layers)

    def read_blocks(self, block_ids: Sequence[int], layers: range | None = None) -> torch.Tensor:
        """Copy blocks out: uint8 ``[N, part_bytes]``, cpu, contiguous."""
        if self.lanes is None and block_ids:
            return _as_rows(gather_blocks(self.part(layers), self._ids(block_ids)))
        return self.read_blocks_with_digest(block_ids, layers)[0]

    def host_rows(
        self, block_ids: Sequence[int], layers: range | None = None
    ) -> Iterator[ByteArray]:
        """Yield the bytes of each block, ``[part_bytes]``; cpu only.

        All are the same array, which stays in the processor's cache: use one before the next.
        """
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
        view, shape = self.part(layers), (len(block_ids), self.part_bytes(layers))
        if tuple(blocks.shape) != shape or blocks.dtype != torch.uint8:
            raise ValueError(
                f"blocks are {blocks.dtype} {tuple(blocks.shape)}, expected torch.uint8 {shape}"
            )
        bad = torch.zeros(len(block_ids), dtype=torch.bool)
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

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        return to_device([np.array(block_ids, dtype=np.int64)], self.device)[0]


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
