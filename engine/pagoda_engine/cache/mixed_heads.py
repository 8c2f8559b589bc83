"""Layers whose KV heads differ in number or size, and where each lies in a block.

Knows numbers of a token. Knows nothing of tensors, or of who owns a block.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda_engine.cache.layer_groups import LayerGroups


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """What one layer caches of a token: K, then V, of so many heads.

    Attributes:
        num_kv_heads: HK.
        head_dim: D, of K and of V.
    """

    num_kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Numbers of K, and as many of V."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MixedHeads:
    """Layers of unlike heads, in one block or in parts of equal bytes.

    Attributes:
        heads: of each layer.
        offsets: for each layer the numbers of a token that lie before its own, in its part.
        width: numbers of a token in a part, some of which may be nobody's. Of each layer's K and V
            it is a multiple, so that blocks lie whole tokens of any layer apart.
    """

    heads: tuple[LayerHeads, ...]
    offsets: tuple[int, ...]
    width: int

    @property
    def name(self) -> str:
        """Return what tells these sizes, in this order, from others."""
        kinds = sorted(set(self.heads), key=self.heads.index)
        sizes = ".".join(f"HK{each.num_kv_heads}D{each.head_dim}" for each in kinds)
        if len(kinds) == len(self.heads):
            return sizes
        return f"{sizes}.{'.'.join(str(kinds.index(each)) for each in self.heads)}"

    def in_one_place(self) -> "MixedHeads":
        """Return them all lying where one does, for caches of which nobody reads the numbers."""
        widest = 2 * max(each.width for each in self.heads)
        return replace(self, offsets=(0,) * len(self.heads), width=_even(widest, self.heads))


def mixed_heads(heads: Sequence[LayerHeads], groups: LayerGroups | None) -> MixedHeads:
    """Lay layers out, in order, each group in a part of its own."""
    ends = [0] * (1 if groups is None else 1 + groups.num_windowed)
    offsets = []
    for layer, each in enumerate(heads):
        part = 0 if groups is None else groups.places[layer][0]
        offsets.append(ends[part])
        ends[part] += 2 * each.width
    return MixedHeads(tuple(heads), tuple(offsets), _even(max(ends), heads))


def _even(width: int, heads: Sequence[LayerHeads]) -> int:
    """Return the next multiple of all layers' widths."""
    each = math.lcm(*(layer.width for layer in heads))
    return -(-width // each) * each
