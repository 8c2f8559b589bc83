"""Parts of blocks that only layers with windows read: which places they take, and who holds them.

A block's windowed parts come and go together, while the block itself stays (see `LayerGroups`).
Knows places in the pool. Knows nothing of hashes, tensors or sequences.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

NO_PLACE = -1
"""Stands where a block has no windowed parts."""

PlaceTable = npt.NDArray[np.int32]
"""``[num_places, parts of a block]``: where the windowed parts of the block with an id lie."""


def place_table(num_places: int, num_parts: int) -> PlaceTable:
    """Return the table of a pool whose blocks have no windowed parts yet."""
    return np.full((num_places, num_parts), NO_PLACE, dtype=np.int32)


class WindowedParts:
    """Bookkeeping of `BlockPool`, which takes places and gives them back.

    Each block has parts that somebody holds, or that nobody holds any more (idle: kept for a later
    prefix until their places are needed), or none.
    """

    def __init__(self, table: PlaceTable) -> None:
        """Begin with none; `table` may be read by others, and is written here alone."""
        self.num_parts = int(table.shape[1])
        self._table = table
        self._ref_counts = [0] * len(table)
        self._idle: OrderedDict[int, int] = OrderedDict()  # block -> when; first = given up first

    @property
    def num_idle_places(self) -> int:
        """Places that `take` would give back of `oldest`, one call after the other."""
        return len(self._idle) * self.num_parts

    @property
    def oldest_idle(self) -> float:
        """When the first of the idle ones became idle; infinity if none is."""
        return next(iter(self._idle.values()), float("inf"))

    def has(self, block_id: int) -> bool:
        """Tell whether a block has its windowed parts."""
        return bool(self._table[block_id, 0] != NO_PLACE)

    def ref_count(self, block_id: int) -> int:
        """Return how many hold a block's windowed parts."""
        return self._ref_counts[block_id]

    def attach(self, block_id: int, places: Sequence[int]) -> None:
        """Let a block without them have its parts at these places, held once."""
        assert not self.has(block_id), f"block {block_id} has its parts already"
        self._table[block_id] = places
        self._ref_counts[block_id] = 1

    def hold(self, block_ids: Iterable[int]) -> None:
        """Hold the parts of blocks once more; all have them."""
        for block_id in block_ids:
            assert self.has(block_id), f"block {block_id} has lost its parts"
            if self._ref_counts[block_id] == 0:
                del self._idle[block_id]
            self._ref_counts[block_id] += 1

    def drop(self, block_id: int, *, is_kept: bool, now: int) -> list[int]:
        """Give back one reference; return the places that are free then.

        Args:
            block_id: whose parts somebody holds.
            is_kept: they may be of use to others, so they become idle.
            now: when that is, for `oldest_idle`.
        """
        assert self._ref_counts[block_id], f"nobody holds the parts of block {block_id}"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id]:
            return []
        if is_kept:
            self._idle[block_id] = now
            return []
        return self._detach(block_id)

    def take(self, block_id: int) -> list[int]:
        """Take a block's parts away if they are idle; return the places that are free then."""
        if self._idle.pop(block_id, None) is None:
            return []
        return self._detach(block_id)

    def oldest(self) -> int:
        """Return whose parts are idle for longest; some are."""
        return next(iter(self._idle))

    def check_invariants(self, ref_counts: dict[int, int]) -> set[int]:
        """Recount, and return the places that are taken. `ref_counts`: as holders say."""
        has_parts = np.flatnonzero(self._table[:, 0] != NO_PLACE).tolist()
        held = {b: count for b, count in enumerate(self._ref_counts) if count}
        assert held == ref_counts, f"parts are held {held}, holders say {ref_counts}"
        assert set(has_parts) == set(held) | set(self._idle), "parts that nobody knows of"
        assert not set(held) & set(self._idle), "parts are held and idle"
        taken = self._table[has_parts].flatten().tolist()
        assert len(set(taken)) == len(taken), "two blocks have a part in one place"
        assert NO_PLACE not in taken, "a block has some of its parts"
        return set(taken)

    def _detach(self, block_id: int) -> list[int]:
        places: list[int] = self._table[block_id].tolist()
        self._table[block_id] = NO_PLACE
        return places
