"""The tensor that holds all KV of one engine, and its bytes block by block.

Knows shapes and bytes. Knows nothing of who owns a block (see `block_pool`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pagoda.kernels import gather_blocks, scatter_blocks


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of the cache: ``[2, num_layers, num_blocks, block_size, num_kv_heads, head_dim]``.

    Index 0 of the first dimension is K (with RoPE applied), index 1 is V. One block outside the
    engine is the same without ``num_blocks``: ``[2, num_layers, block_size, num_kv_heads,
    head_dim]``, contiguous.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """Return what two engines must agree on before they swap blocks."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"kv2-L{self.num_layers}-HK{self.num_kv_heads}-D{self.head_dim}"
            f"-{dtype}-bs{self.block_size}"
        )

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Return the shape of one block."""
        return (2, self.num_layers, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Return the size of one block, all layers."""
        elements = 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_dim
        return elements * self.dtype.itemsize


class KvCache:
    """All KV blocks of an engine on its device.

    `read_blocks` and `write_blocks` may be called by any thread, as long as the step loop does not
    write the same blocks: a reader holds blocks that are complete, a writer blocks that were
    reserved for its import.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        shape = (2, layout.num_layers, num_blocks, *layout.block_shape[2:])
        # Zeros, not empty: a masked slot times a NaN that lies there would still be a NaN.
        self.tensor = torch.zeros(shape, dtype=layout.dtype, device=device)
        self._layers = list(zip(self.tensor[0].unbind(), self.tensor[1].unbind(), strict=True))

    @property
    def block_bytes(self) -> int:
        """Size of one block, all layers."""
        return self.layout.block_bytes

    def layer(self, layer_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views (K, V) of one layer, each ``[num_blocks, block_size, HK, D]``."""
        return self._layers[layer_index]

    def read_blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        """Copy blocks out: uint8 ``[N, block_bytes]``, cpu, contiguous. Waits for the device."""
        if not block_ids:
            return torch.empty((0, self.block_bytes), dtype=torch.uint8)
        blocks = gather_blocks(self.tensor, self._ids(block_ids)).contiguous()
        return blocks.view(len(block_ids), -1).view(torch.uint8).cpu()

    def write_blocks(self, block_ids: Sequence[int], blocks: torch.Tensor) -> None:
        """Copy blocks in; on return the device has them.

        Args:
            block_ids: where to, each at most once.
            blocks: uint8 ``[N, block_bytes]``, any device, as `read_blocks` returned them.

        Raises:
            ValueError: the shape or dtype of ``blocks`` is another.
        """
        expected = (len(block_ids), self.block_bytes)
        if tuple(blocks.shape) != expected or blocks.dtype != torch.uint8:
            raise ValueError(
                f"blocks are {blocks.dtype} {tuple(blocks.shape)}, expected torch.uint8 {expected}"
            )
        if not block_ids:
            return
        blocks = blocks.contiguous()
        if blocks.data_ptr() % self.layout.dtype.itemsize:  # a view into a received message
            blocks = blocks.clone()
        typed = blocks.view(self.layout.dtype)
        typed = typed.view(len(block_ids), *self.layout.block_shape).to(self.tensor.device)
        scatter_blocks(self.tensor, self._ids(block_ids), typed)
        if self.tensor.is_cuda:
            torch.cuda.current_stream(self.tensor.device).synchronize()

    def _ids(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self.tensor.device)
