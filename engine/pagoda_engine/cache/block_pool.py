"""Physical KV blocks of one engine: who holds them and which may be evicted.

Knows block ids and block hashes. Knows nothing of tensors, sequences or the network.

Every block is in exactly one of three places:

- held: ref_count >= 1; its holders free it once each;
- cached: ref_count 0 but it has a hash, so that a later prompt may reuse it; evicted when nothing
  else is left, least recently freed first;
- blank: ref_count 0 and no hash.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from pagoda_engine.errors import BlockPoolError

OnEvict = Callable[[bytes, int], None]


class BlockPool:
    """Allocation, sharing by hash, and eviction. Not thread-safe."""

    def __init__(self, num_blocks: int, *, on_evict: OnEvict | None = None) -> None:
        """Make a pool of blank blocks.

        Args:
            num_blocks: ids run over [0, num_blocks).
            on_evict: called with (hash, block id) while the block still has its bytes, when it
                loses its hash.
        """
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack: recently used blocks are warm
        self._cached: OrderedDict[int, None] = OrderedDict()  # first = evicted first
        self._by_hash: dict[bytes, int] = {}
        self._stored: dict[bytes, int] = {}
        self._evicted: dict[bytes, None] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` could hand out: blank ones and cached ones that nobody holds."""
        return len(self._blank) + len(self._cached)

    def ref_count(self, block_id: int) -> int:
        """Return how many holders a block has."""
        return self._ref_counts[block_id]

    def match(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many leading hashes are here. No side effect."""
        count = 0
        for block_hash in block_hashes:
            if block_hash not in self._by_hash:
                break
            count += 1
        return count

    def num_allocatable(
        self, block_hashes: Sequence[bytes], given_back: Mapping[int, int] | None = None
    ) -> int:
        """Return the free blocks that remain for new content once these cached ones are held.

        Args:
            block_hashes: all must be here.
            given_back: block id -> references that would be freed before.
        """
        given_back = given_back or {}
        num_freed = sum(self._ref_counts[b] == count for b, count in given_back.items())
        cached = (self._by_hash[block_hash] for block_hash in block_hashes)
        taken = sum(self._ref_counts[b] == given_back.get(b, 0) for b in cached)
        return self.num_free_blocks + num_freed - taken

    def allocate(self, block_hashes: Sequence[bytes], num_new: int) -> list[int] | None:
        """Hold the blocks of these hashes (all must be here) and `num_new` blocks to be written.

        The caller owns one reference to each until `free`. Returns None if too few are free; then
        nothing changed.
        """
        if self.num_allocatable(block_hashes) < num_new:
            return None
        block_ids = [self._by_hash[block_hash] for block_hash in block_hashes]
        for block_id in block_ids:  # first of all, so that none of them is evicted for the new ones
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1
        for _ in range(num_new):
            block_id = self._blank.pop() if self._blank else self._evict()
            self._ref_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def share(self, block_ids: Sequence[int]) -> None:
        """Hold blocks once more that somebody holds; each of the holders frees them."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                raise BlockPoolError(block_id, "only a held block can be shared")
            self._ref_counts[block_id] += 1

    def register(self, block_id: int, block_hash: bytes) -> bool:
        """Make a held, fully written block reusable under its hash.

        Returns False when another block has that hash already: this one then stays private.
        """
        if self._ref_counts[block_id] == 0 or self._hashes[block_id] is not None:
            raise BlockPoolError(block_id, "only a held block without a hash can get one")
        if block_hash in self._by_hash:
            return False
        self._hashes[block_id] = block_hash
        self._by_hash[block_hash] = block_id
        self._evicted.pop(block_hash, None)  # evicted and computed again within one step
        self._stored[block_hash] = block_id
        return True

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Let nobody reuse these blocks, as far as they are here; who holds one keeps it."""
        for block_hash in block_hashes:
            block_id = self._by_hash.get(block_hash)
            if block_id is None:
                continue
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
                self._blank.append(block_id)
            self._drop_hash(block_id)

    def free(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a sequence, in logical order.

        The last blocks of a sequence become the first to evict: without its prefix a block is
        useless.
        """
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] == 0:
                raise BlockPoolError(block_id, "freed, but nobody holds it")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                if self._hashes[block_id] is None:
                    self._blank.append(block_id)
                else:
                    self._cached[block_id] = None

    def take_events(self) -> tuple[tuple[tuple[bytes, int], ...], tuple[bytes, ...]]:
        """Return (stored, evicted) since the last call and forget them.

        A hash is in at most one of the two, whatever happened to it in between.
        """
        if not self._stored and not self._evicted:
            return (), ()
        events = tuple(self._stored.items()), tuple(self._evicted)
        self._stored.clear()
        self._evicted.clear()
        return events

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would return anything."""
        return bool(self._stored or self._evicted)

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        self._drop_hash(block_id)
        return block_id

    def _drop_hash(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        assert block_hash is not None
        if self._on_evict is not None:
            self._on_evict(block_hash, block_id)
        self._hashes[block_id] = None
        del self._by_hash[block_hash]
        # A hash that nobody was told of needs no goodbye either, unless an older block had it
        # before: naming it once too often is harmless, once too seldom is not.
        self._stored.pop(block_hash, None)
        self._evicted[block_hash] = None

    def check_invariants(self, ref_counts: Mapping[int, int]) -> None:
        """Recount everything. `ref_counts`: what all holders together say they hold."""
        for block_id in range(self.num_blocks):
            expected = ref_counts.get(block_id, 0)
            found = self._ref_counts[block_id]
            assert found == expected, (
                f"block {block_id}: {found} references, holders say {expected}"
            )
        held = {b for b, count in enumerate(self._ref_counts) if count}
        blank, cached = set(self._blank), set(self._cached)
        assert len(blank) == len(self._blank), "a blank block is listed twice"
        assert held.isdisjoint(blank), "a held block is listed as blank"
        assert held.isdisjoint(cached), "a held block is listed as evictable"
        assert blank.isdisjoint(cached), "a blank block is listed as evictable"
        assert len(held) + len(blank) + len(cached) == self.num_blocks, "a block is lost"
        hashed = {b: h for b, h in enumerate(self._hashes) if h is not None}
        assert {h: b for b, h in hashed.items()} == self._by_hash, "hash index differs from blocks"
        assert cached <= set(hashed), "an evictable block has no hash"
        assert blank.isdisjoint(hashed), "a blank block has a hash"
        assert not set(self._stored) & set(self._evicted)
        assert all(self._by_hash.get(h) == b for h, b in self._stored.items())
        assert not set(self._evicted) & set(self._by_hash)
