"""What KV blocks hold, and so the shape of the cache: the same of all layers, or sizes of each.

Knows shapes and bytes. Knows no tensor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pagoda_engine.cache.layer_groups import LayerGroups
from pagoda_engine.cache.mixed_heads import LayerHeads, MixedHeads, mixed_heads


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

    With ``groups`` a block has a part for each group of layers, and the cache is of parts:
    ``[planes, group_size, num_places, ...]``. A block outside the engine is one part after the
    other then; places of layers that are not there are part of it.

    With ``mixed`` heads of layers are not alike. To all that moves a block, or a part of it, it is
    one layer of one plane and one head then, ``[1, 1, num_places, block_size, 1, width]``. In it
    layers follow one another, of each K of all tokens, then V.

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
    groups: LayerGroups | None = None
    mixed: MixedHeads | None = None

    @classmethod
    def of_mixed(
        cls,
        block_size: int,
        heads: Sequence[LayerHeads],
        dtype: torch.dtype,
        *,
        scales: str = "",
        groups: LayerGroups | None = None,
    ) -> "KvLayout":
        """Return the layout of layers with these heads."""
        mixed = mixed_heads(heads, groups)
        return cls(
            1 if groups is None else 1 + groups.num_windowed,
            block_size,
            1,
            mixed.width,
            dtype,
            num_planes=1,
            scales=scales,
            groups=groups,
            mixed=mixed,
        )

    @property
    def name(self) -> str:
        """Return what two engines must agree on before they swap blocks."""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"kv{self.num_planes}-L{self.num_layers}-HK{self.num_kv_heads}-D{self.head_dim}"
            f"-{dtype}-bs{self.block_size}"
            + (f"-s{self.scales}" if self.scales else "")
            + ("-packed" if self.is_packed else "")
            + (f"-g{self.groups.name}" if self.groups is not None else "")
            + (f"-{self.mixed.name}" if self.mixed is not None else "")
        )

    @property
    def num_parts(self) -> int:
        """Return the parts of a block."""
        return 1 if self.groups is None else 1 + self.groups.num_windowed

    @property
    def first_part(self) -> range | None:
        """Return as what layers the first part of a block is known; None: blocks have one part."""
        return None if self.groups is None else range(self.block_shape[1])

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Return the shape of one block, or of a part of it."""
        num_layers = self.num_layers if self.groups is None else self.groups.group_size
        if self.mixed is not None:
            num_layers = 1
        return (self.num_planes, num_layers, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Return the size of one block, all layers."""
        return math.prod(self.block_shape) * self.dtype.itemsize * self.num_parts

    @property
    def place_bytes(self) -> int:
        """Return the size of one part of a block."""
        return self.block_bytes // self.num_parts

    def pool_shape(self, num_blocks: int) -> tuple[int, int, int, int, int, int]:
        """Return the shape of a cache of so many blocks."""
        return (*self.block_shape[:2], num_blocks * self.num_parts, *self.block_shape[2:])

    def offsets(self) -> list[tuple[int, int]]:
        """Return the elements before K and before V of each layer of unlike ones, in its part."""
        assert self.mixed is not None, "others lie at even distances"
        starts = zip(self.mixed.heads, self.mixed.offsets, strict=True)
        return [
            (self.block_size * offset, self.block_size * (offset + each.width))
            for each, offset in starts
        ]

    def in_one_part(self) -> "KvLayout":
        """Return the layout of a cache whose blocks have all layers as long as they are there."""
        if self.mixed is None or self.groups is None:
            return replace(self, groups=None)
        whole = self.of_mixed(self.block_size, self.mixed.heads, self.dtype, scales=self.scales)
        return replace(whole, is_packed=self.is_packed)

    def in_one_place(self) -> "KvLayout":
        """Return the layout of a cache whose layers all lie where one does, see `OneLayerCache`."""
        whole = replace(self.in_one_part(), num_layers=1)
        if whole.mixed is None:
            return whole
        mixed = whole.mixed.in_one_place()
        return replace(whole, mixed=mixed, head_dim=mixed.width)
