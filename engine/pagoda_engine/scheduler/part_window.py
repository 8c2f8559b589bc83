"""Which blocks' windowed parts a sequence needs, where only some layers have a window.

Knows positions, sequences and what a pool has. Takes and frees nothing.
"""

from collections.abc import Sequence as SequenceOf

from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.cache.layer_groups import most_windowed
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.sequence_request import KvSource


class PartWindow:
    """The window of the layers that read windowed parts, over the blocks of one pool.

    Attributes:
        most_blocks: that a prompt holds with their parts beside those that it shares: what the
            first token of a chunk sees, and two steps' tokens.
    """

    def __init__(
        self, window: int, pool: BlockPool, *, block_size: int, max_num_batched_tokens: int
    ) -> None:
        self._window = window
        self._pool = pool
        self._block_size = block_size
        self.most_blocks = most_windowed(window, block_size, max_num_batched_tokens)

    def first_seen(self, position: int) -> int:
        """Return the first block whose windowed parts a query at a position or a later one sees."""
        return max(0, position + 1 - self._window) // self._block_size

    def first_handed_over(self, sequence: Sequence) -> int:
        """Return the first block whose windowed parts go from a prefill worker to another one.

        Both work it out: what is seen from the last full block's end on.
        """
        num_full = (len(sequence.token_ids) - 1) // self._block_size
        return self.first_seen(num_full * self._block_size)

    def first_needed(self, sequence: Sequence) -> int:
        """Return the first block whose windowed parts it, or who goes on with it, is to see."""
        first = self.first_seen(sequence.num_computed_tokens)
        if sequence.request.prefill_only:
            first = min(first, self.first_handed_over(sequence))
        return first

    def wanted(self, sequence: Sequence, num_cached: int) -> range:
        """Return which blocks are taken with their windowed parts at an admission.

        What the first token to compute sees, and what is computed first, beside what others share:
        so whoever was let in last can go on until it gives that back, and nobody waits for ever.

        Args:
            sequence: that is to be admitted.
            num_cached: leading blocks that need not be computed.
        """
        num_blocks = -(-len(sequence.token_ids) // self._block_size)
        first = self.first_seen(num_cached * self._block_size)
        if not sequence.is_import_pending:
            return range(first, min(num_blocks, num_cached + self.most_blocks))
        # How much of an import will come is not known: all of it may be seen then. If it is large,
        # and does not come whole, it is computed here from what was cached before.
        each = self._pool.parts_per_block - 1
        is_small = num_blocks + each * (num_blocks - first) <= self._pool.num_places // 2
        if sequence.request.kv_source is KvSource.HANDOVER or not is_small:
            first = self.first_handed_over(sequence)
        return range(first, num_blocks)

    def match(self, hashes: SequenceOf[bytes]) -> int:
        """Return the most leading blocks that are here, the last ones with all their parts."""
        longest = num_whole = 0  # blocks in a row that have them, up to this one
        for end in range(1, self._pool.match(hashes) + 1):
            num_whole = num_whole + 1 if self._pool.is_whole_here(hashes[end - 1]) else 0
            if num_whole >= end - self.first_seen(end * self._block_size):
                longest = end
        return longest

    def check(self, sequence: Sequence, num_written: int) -> None:
        """Raise AssertionError unless the windowed parts that a sequence needs are its own to hold.

        Args:
            sequence: or a beam; it has blocks.
            num_written: tokens whose KV is in the blocks once the launched steps have run.
        """
        held, size = sequence.windowed, self._block_size
        assert held.stop <= len(sequence.block_ids)
        num_needed = min(num_written, len(sequence.block_ids) * size)
        assert num_needed <= held.stop * size, "KV without a part of its block"
        first = self.first_seen(sequence.num_computed_tokens)
        assert held.start <= first, "a query to come sees parts that were given back"
        for i in range(max(held.start, sequence.num_computed_tokens // size), held.stop):
            count = self._pool.windowed_ref_count(sequence.block_ids[i])
            assert count == 1, f"parts of block {sequence.block_ids[i]} are shared"
