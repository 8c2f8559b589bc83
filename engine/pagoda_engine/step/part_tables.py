"""Block tables of the layers whose KV lies in windowed parts of blocks.

Knows which parts a block has and where. Knows nothing of sequences or of the device.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from pagoda_engine.cache.windowed_parts import PlaceTable
from pagoda_engine.scheduler.sequence import NULL_BLOCK

Int32Array = npt.NDArray[np.int32]


def part_tables(
    part_places: PlaceTable | None,
    block_tables: SequenceOf[SequenceOf[int]],
    windowed: SequenceOf[range],
) -> list[Int32Array]:
    """Return ``[S, blocks]`` for each of the parts, NULL_BLOCK where a block is not held with it.

    Args:
        part_places: of the cache; None: there are no such parts, and so no tables.
        block_tables: of each sequence.
        windowed: which of its blocks each holds with their parts.
    """
    if part_places is None:
        return []
    num_columns = max(map(len, block_tables), default=0)
    num_parts = part_places.shape[1]
    tables = np.full((num_parts, len(block_tables), num_columns), NULL_BLOCK, dtype=np.int32)
    for row, (block_ids, held) in enumerate(zip(block_tables, windowed, strict=True)):
        places = part_places[block_ids[held.start : held.stop]]
        tables[:, row, held.start : held.stop] = places.T
    return [*tables]
