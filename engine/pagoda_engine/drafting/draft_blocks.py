"""Which blocks of a draft's KV pool a sequence has, and what they hold.

Knows tokens and block ids. Knows nothing of tensors.
"""

from collections.abc import Sequence


class DraftBlocks:
    """A draft's KV of one sequence.

    Attributes:
        block_ids: logical -> physical; entry i covers tokens [i * block_size, (i + 1) *
            block_size). Its own, whatever the sequence shares of the target's.
        num_computed: leading tokens of the sequence whose KV is there.
        ahead: tokens behind them whose KV is there too: drafted ones, right or not.
    """

    __slots__ = ("ahead", "block_ids", "num_computed")

    def __init__(self) -> None:
        self.block_ids: list[int] = []
        self.num_computed = 0
        self.ahead: Sequence[int] = ()

    def follow(self, token_ids: Sequence[int]) -> None:
        """Keep of what was drafted what came; the last token's logits are always computed.

        Also where nothing came: not every step that was drafted for is computed.
        """
        most = len(token_ids) - 1
        self.num_computed = min(self.num_computed, most)
        for token_id in self.ahead:
            if self.num_computed >= most or token_ids[self.num_computed] != token_id:
                break
            self.num_computed += 1
        self.ahead = ()


class DraftPool:
    """The blocks of a draft's KV: nobody shares one, and nothing is kept without a sequence."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    def grow(self, blocks: DraftBlocks, num_tokens: int) -> bool:
        """Let a sequence have room for so many tokens; if there is none, nothing changes."""
        num_missing = -(-num_tokens // self.block_size) - len(blocks.block_ids)
        if num_missing > len(self._free):
            return False
        for _ in range(num_missing):
            blocks.block_ids.append(self._free.pop())
        return True

    def free(self, blocks: DraftBlocks) -> None:
        """Take all blocks of a sequence back."""
        self._free.extend(reversed(blocks.block_ids))
        blocks.block_ids = []
        blocks.num_computed, blocks.ahead = 0, ()

    def check_invariants(self, held: Sequence[DraftBlocks]) -> None:
        """Raise AssertionError unless each block is free or has one owner."""
        taken = [block_id for blocks in held for block_id in blocks.block_ids]
        assert sorted([*taken, *self._free]) == list(range(self.num_blocks)), "draft KV leaked"
        for blocks in held:
            num_written = blocks.num_computed + len(blocks.ahead)
            assert num_written <= len(blocks.block_ids) * self.block_size, (
                "draft KV without a block"
            )
