"""Physical KV blocks of one engine: who holds them and which may be evicted.

Knows block ids and block hashes. Knows nothing of tensors, sequences or the network.

Every block is in exactly one of three states:

- held: ref_count >= 1; its holders free it once each;
- cached: ref_count 0 but it has a hash, so that a later prompt may reuse it; evicted when nothing
  else is left, least recently freed first;
- blank: ref_count 0 and no hash.

Where layers are in groups (`LayerGroups`), the pool is of places for parts of blocks. A block's id
is the place of its first part, and others are those of its windowed parts, which it has as long as
somebody holds these, or nobody needs their places. A block that has lost them is still found, by
prompts that do not see its tokens from layers with windows.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from pagoda_engine.cache.windowed_parts import PlaceTable, WindowedParts
from pagoda_engine.errors import BlockPoolError

OnEvict = Callable[[bytes, int], None]
NO_BLOCKS = range(0)


class BlockPool:
    """Allocation, sharing by hash, and eviction. Not thread-safe."""

    def __init__(
        self,
        num_blocks: int,
        *,
        on_evict: OnEvict | None = None,
        part_places: PlaceTable | None = None,
    ) -> None:
        """Make a pool of blank blocks.

        Args:
            num_blocks: that there are, if all have all their parts.
            on_evict: called with (hash, block id) while the block still has its bytes, when it
                loses its hash, or its windowed parts.
            part_places: of the cache, written here; None: blocks have one part, and ids run over
                [0, num_blocks).
        """
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._windowed = None if part_places is None else WindowedParts(part_places)
        self.parts_per_block = 1 if self._windowed is None else 1 + self._windowed.num_parts
        self.num_places = num_places = num_blocks * self.parts_per_block
        self._ref_counts = [0] * num_places
        self._hashes: list[bytes | None] = [None] * num_places
        self._blank = list(range(num_places - 1, -1, -1))  # a stack: recently used places are warm
        self._cached: OrderedDict[int, int] = OrderedDict()  # block -> when; first = evicted first
        self._now = itertools.count()
        self._by_hash: dict[bytes, int] = {}
        self._stored: dict[bytes, int] = {}
        self._evicted: dict[bytes, None] = {}

    @property
    def num_free_places(self) -> int:
        """Places that could be had: blank ones, and those of what is cached and nobody holds."""
        num_idle = 0 if self._windowed is None else self._windowed.num_idle_places
        return len(self._blank) + len(self._cached) + num_idle

    @property
    def num_free_blocks(self) -> int:
        """Blocks with all their parts that `allocate` could hand out."""
        return self.num_free_places // self.parts_per_block

    def ref_count(self, block_id: int) -> int:
        """Return how many holders a block has."""
        return self._ref_counts[block_id]

    def is_whole(self, block_id: int) -> bool:
        """Tell whether a block has all its parts."""
        return self._windowed is None or self._windowed.has(block_id)

    def windowed_ref_count(self, block_id: int) -> int:
        """Return how many hold a block's windowed parts."""
        return 0 if self._windowed is None else self._windowed.ref_count(block_id)

    def match(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many leading hashes are here. No side effect."""
        count = 0
        for block_hash in block_hashes:
            if block_hash not in self._by_hash:
                break
            count += 1
        return count

    def is_whole_here(self, block_hash: bytes) -> bool:
        """Tell whether a block that is here has all its parts."""
        return self.is_whole(self._by_hash[block_hash])

    def num_allocatable(
        self,
        block_hashes: Sequence[bytes],
        given_back: Mapping[int, int] | None = None,
        *,
        windowed: range = NO_BLOCKS,
        windowed_given_back: Mapping[int, int] | None = None,
    ) -> int:
        """Return the free places that remain for new content once these cached blocks are held.

        Args:
            block_hashes: all must be here.
            given_back: block id -> references that would be freed before.
            windowed: which of the hashes' blocks are to be held with their windowed parts; may
                reach beyond them.
            windowed_given_back: the same as `given_back`, of windowed parts.
        """
        given_back = given_back or {}
        num_freed = sum(self._ref_counts[b] == count for b, count in given_back.items())
        cached = [self._by_hash[block_hash] for block_hash in block_hashes]
        taken = sum(self._ref_counts[b] == given_back.get(b, 0) for b in cached)
        if self._windowed is not None:
            refs, num_parts = self._windowed.ref_count, self._windowed.num_parts
            given = windowed_given_back or {}
            num_freed += num_parts * sum(refs(b) == count for b, count in given.items())
            taken += num_parts * sum(
                refs(b) == given.get(b, 0) for b in cached[windowed.start : windowed.stop]
            )
        return self.num_free_places + num_freed - taken

    def num_places_for(self, first_new: int, num_new: int, windowed: range) -> int:
        """Return the places that new blocks need: [first_new, first_new + num_new) of a table.

        Args:
            first_new: blocks of the table that are here already.
            num_new: blocks that follow.
            windowed: which of the table's blocks have windowed parts.
        """
        num_windowed = len(range(max(first_new, windowed.start), windowed.stop))
        return num_new + (self.parts_per_block - 1) * num_windowed

    def allocate(
        self, block_hashes: Sequence[bytes], num_new: int, *, windowed: range = NO_BLOCKS
    ) -> list[int] | None:
        """Hold the blocks of these hashes (all must be here) and `num_new` blocks to be written.

        The caller owns one reference to each until `free`, and one to the windowed parts of
        `windowed`, a range of the result, until `drop_windowed`: those of hashes must have theirs.
        Returns None if too few are free; then nothing changed.
        """
        num_places = self.num_places_for(len(block_hashes), num_new, windowed)
        if self.num_allocatable(block_hashes, windowed=windowed) < num_places:
            return None
        block_ids = [self._by_hash[block_hash] for block_hash in block_hashes]
        for block_id in block_ids:  # first of all, so that none of them is evicted for the new ones
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1
        if self._windowed is not None:
            self._windowed.hold(block_ids[windowed.start : windowed.stop])
        for _ in range(num_new):
            block_id = self._take_place()
            self._ref_counts[block_id] = 1
            block_ids.append(block_id)
        for block_id in block_ids[max(len(block_hashes), windowed.start) : windowed.stop]:
            self._attach(block_id)
        return block_ids

    def allocate_one(self, *, windowed: bool) -> int | None:
        """Hold one block to be written, with its windowed parts or without, as `allocate` does.

        Decodes ask for nothing else, and a step may have hundreds.
        """
        if self.num_free_places < (self.parts_per_block if windowed else 1):
            return None
        block_id = self._take_place()
        self._ref_counts[block_id] = 1
        if windowed:
            self._attach(block_id)
        return block_id

    def share(self, block_ids: Sequence[int]) -> None:
        """Hold blocks once more that somebody holds; each of the holders frees them."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                raise BlockPoolError(block_id, "only a held block can be shared")
            self._ref_counts[block_id] += 1

    def share_windowed(self, block_ids: Sequence[int]) -> None:
        """Hold windowed parts once more that somebody holds."""
        if self._windowed is not None:
            self._windowed.hold(block_ids)

    def attach_windowed(self, block_ids: Sequence[int]) -> int:
        """Let held blocks that lack their windowed parts have them, in order, as far as they fit.

        The caller owns a reference to them. Returns how many blocks have them now.
        """
        each = self.parts_per_block - 1
        num = min(len(block_ids), self.num_free_places // each) if each else 0
        for block_id in block_ids[:num]:
            self._attach(block_id)
        return num

    def drop_windowed(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to the windowed parts of blocks that the caller holds.

        Those of blocks with a hash are kept until their places are needed.
        """
        if self._windowed is None:
            return
        for block_id in block_ids:
            is_kept = self._hashes[block_id] is not None
            self._blank += self._windowed.drop(block_id, is_kept=is_kept, now=next(self._now))

    def register(self, block_id: int, block_hash: bytes) -> bool:
        """Make a held, fully written block reusable under its hash.

        Returns False when another block has that hash already, and has as many parts: this one then
        stays private.
        """
        if self._ref_counts[block_id] == 0 or self._hashes[block_id] is not None:
            raise BlockPoolError(block_id, "only a held block without a hash can get one")
        other = self._by_hash.get(block_hash)
        if other is not None:
            windowed = self._windowed
            if windowed is None or windowed.has(other) or not windowed.has(block_id):
                return False
            self._forget(other)
        self._hashes[block_id] = block_hash
        self._by_hash[block_hash] = block_id
        self._evicted.pop(block_hash, None)  # evicted and computed again within one step
        self._stored[block_hash] = block_id
        return True

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Let nobody reuse these blocks, as far as they are here; who holds one keeps it."""
        for block_hash in block_hashes:
            block_id = self._by_hash.get(block_hash)
            if block_id is not None:
                self._forget(block_id)

    def free(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a sequence, in logical order.

        The last blocks of a sequence become the first to evict: without its prefix a block is
        useless. Windowed parts that the caller holds go first, by `drop_windowed`.
        """
        ref_counts, hashes, now = self._ref_counts, self._hashes, self._now
        for block_id in reversed(block_ids):
            count = ref_counts[block_id]
            if count == 0:
                raise BlockPoolError(block_id, "freed, but nobody holds it")
            ref_counts[block_id] = count - 1
            if count == 1:
                if hashes[block_id] is None:
                    self._blank.append(block_id)
                else:
                    self._cached[block_id] = next(now)

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

    def _take_place(self) -> int:
        while not self._blank:
            self._evict()
        return self._blank.pop()

    def _attach(self, block_id: int) -> None:
        assert self._windowed is not None
        places = [self._take_place() for _ in range(self._windowed.num_parts)]
        self._windowed.attach(block_id, places)

    def _evict(self) -> None:
        """Make places blank: a cached block's, or those of parts that are idle for longer."""
        oldest = next(iter(self._cached.values()), float("inf"))
        if self._windowed is not None and self._windowed.oldest_idle < oldest:
            block_id = self._windowed.oldest()
            block_hash = self._hashes[block_id]
            if self._on_evict is not None and block_hash is not None:
                self._on_evict(block_hash, block_id)
            self._blank += self._windowed.take(block_id)
        else:
            self._forget(next(iter(self._cached)))

    def _forget(self, block_id: int) -> None:
        """Take a block's hash, and with it what was kept for others alone."""
        self._drop_hash(block_id)
        if self._windowed is not None:
            self._blank += self._windowed.take(block_id)
        if self._ref_counts[block_id] == 0:
            del self._cached[block_id]
            self._blank.append(block_id)

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

    def check_invariants(
        self, ref_counts: Mapping[int, int], windowed: Mapping[int, int] | None = None
    ) -> None:
        """Recount everything. `ref_counts`, `windowed`: what all holders together say they hold."""
        taken: set[int] = set()
        if self._windowed is not None:
            taken = self._windowed.check_invariants(dict(windowed or {}))
        for block_id in range(self.num_places):
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
        assert taken.isdisjoint(held | blank | cached), "a block's part is listed as a block"
        assert len(held) + len(blank) + len(cached) + len(taken) == self.num_places, (
            "a block is lost"
        )
        hashed = {b: h for b, h in enumerate(self._hashes) if h is not None}
        assert {h: b for b, h in hashed.items()} == self._by_hash, "hash index differs from blocks"
        assert cached <= set(hashed), "an evictable block has no hash"
        assert blank.isdisjoint(hashed), "a blank block has a hash"
        assert not set(self._stored) & set(self._evicted)
        assert all(self._by_hash.get(h) == b for h, b in self._stored.items())
        assert not set(self._evicted) & set(self._by_hash)
        if self._windowed is not None:
            with_parts = {b for b in range(self.num_places) if self._windowed.has(b)}
            assert with_parts <= held | cached, "parts of a block that is not there"
            assert set(windowed or {}) <= held, "parts are held, their block is not"
