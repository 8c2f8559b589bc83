"""Which layers of a sequence's blocks were sent already, and which are left.

A block counts as computed only once the engine has named it whole, so its last layers are never
sent before. Knows nothing of transports.
"""

import itertools

from pagoda_engine import ComputedBlocks, ComputedLayers
from pagoda_worker.kv_transfer.base import KvPush


class ExportedLayers:
    """Sends one sequence's blocks, each layer once.

    Args:
        push: takes them.
        num_layers: of a block.
        first_block: the consumer has those before it.
        first_part: layers of blocks that are wanted in part.
    """

    def __init__(
        self, push: KvPush, num_layers: int, first_block: int, first_part: range | None = None
    ) -> None:
        self._first_part = first_part
        self._push = push
        self._num_layers = num_layers
        self._first_block = first_block
        self._num_sent: dict[int, int] = {}  # block -> its leading layers that were sent

    async def send_layers(self, computed: ComputedLayers) -> None:
        """Send layers once they are written.

        Raises:
            PushError: see `KvPush.send`.
        """
        skip = max(self._first_block - computed.first_block, 0)
        block_ids, first_block = computed.block_ids[skip:], computed.first_block + skip
        layers = range(computed.first_layer, computed.first_layer + computed.num_layers)
        blocks = range(first_block, first_block + len(block_ids))
        is_next = all(self._num_sent.get(block, 0) == layers.start for block in blocks)
        if not block_ids or not is_next or layers.stop >= self._num_layers:
            return  # a hint that is of no use; the rest is sent at the end
        await self._push.send(first_block, block_ids, layers=layers, wait=computed.wait)
        self._num_sent.update(dict.fromkeys(blocks, layers.stop))

    async def send_rest(self, computed: ComputedBlocks) -> None:
        """Send what was not sent of blocks that are complete.

        Raises:
            PushError: see `KvPush.send`.
        """
        skip = max(self._first_block - computed.first_block, 0)
        blocks = enumerate(computed.block_ids[skip:], computed.first_block + skip)
        end = computed.first_block + computed.num_partial
        for layers, some in itertools.groupby(blocks, lambda b: self._layers_left(b[0], end)):
            indices, block_ids = zip(*some, strict=True)
            await self._push.send(indices[0], block_ids, layers=layers)

    def _layers_left(self, block: int, end_partial: int) -> range | None:
        """Return what of a block is still to be sent: None for all of it."""
        if block < end_partial:
            return self._first_part
        num_sent = self._num_sent.pop(block, 0)
        return range(num_sent, self._num_layers) if num_sent else None
