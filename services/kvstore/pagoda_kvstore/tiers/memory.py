"""Tier 1: blocks in CPU memory under a hard byte budget.

Evicts the least recently used leaf first: a block whose children are held here is worth more than
any of them, because a prefix match needs every block before it. Not thread-safe: the event loop
owns it.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pagoda_kvstore.block import Block, BlockKey

# What a held block costs besides its payload: dict entry, key, digest, bookkeeping. Counted in the
# budget.
BLOCK_OVERHEAD_BYTES = 512


@dataclass(slots=True, eq=False)
class _Entry:
    block: Block
    tick: int  # of its last use
    is_queued: bool = False  # has a place in the heap of leaves


class MemoryTier:
    """Blocks in memory. `used_bytes` never exceeds `budget_bytes`."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.num_hits = self.num_misses = self.num_evictions = self.num_bad_digests = 0
        self._entries: dict[BlockKey, _Entry] = {}
        self._num_children: Counter[BlockKey] = (
            Counter()
        )  # held children of a key, held itself or not
        self._leaves: list[
            tuple[int, int, _Entry]
        ] = []  # (tick when queued, tie breaker, entry), a heap
        self._tick = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._entries

    def keys(self) -> Iterator[BlockKey]:
        """Return every key held."""
        return iter(self._entries)

    def block_bytes(self, key: BlockKey) -> int:
        """Return the payload bytes of a block, 0 if it is not held."""
        entry = self._entries.get(key)
        return len(entry.block.payload) if entry else 0

    def get(self, key: BlockKey) -> Block | None:
        """Return an intact block and mark it used; a damaged one is dropped, counted and a miss."""
        entry = self._entries.get(key)
        if entry is None:
            self.num_misses += 1
            return None
        if not entry.block.is_intact():
            self.num_bad_digests += 1
            self.num_misses += 1
            self._remove(entry)
            return None
        self.num_hits += 1
        self._touch(entry)
        return entry.block

    def put(self, block: Block) -> list[Block] | None:
        """Hold `block`, and return what was evicted for it.

        A known block is only marked used. Returns None if it does not fit within the budget,
        because the rest is its own chain; then nothing changed.
        """
        known = self._entries.get(block.key)
        if known is not None:
            self._touch(known)
            return []
        self._count_child(block, 1)  # before making room: a parent must not go for its child
        victims = self._make_room(_cost(block))
        if victims is None:
            self._count_child(block, -1)
            return None
        self._insert(_Entry(block, self._next_tick()))
        self.num_evictions += len(victims)
        return [victim.block for victim in victims]

    def check_invariants(self) -> None:
        """Recount everything from first principles; for tests."""
        blocks = [entry.block for entry in self._entries.values()]
        assert self.used_bytes == sum(map(_cost, blocks)) <= self.budget_bytes
        children = Counter(block.parent_key for block in blocks if block.parent_key)
        assert children == +self._num_children, "children miscounted"
        assert all(count > 0 for count in self._num_children.values())
        queued = [entry for _, _, entry in self._leaves]
        live = [entry for entry in queued if self._entries.get(entry.block.key) is entry]
        assert len({id(entry) for entry in live}) == len(live), "queued twice"
        for entry in self._entries.values():
            assert entry.is_queued or self._num_children[entry.block.key], "a leaf is not queued"

    def _make_room(self, num_bytes: int) -> list[_Entry] | None:
        if num_bytes > self.budget_bytes:
            return None
        victims: list[_Entry] = []
        while self.used_bytes + num_bytes > self.budget_bytes:
            victim = self._pop_leaf()
            if victim is None:
                for entry in reversed(victims):
                    self._count_child(entry.block, 1)
                    self._insert(entry)
                return None
            self._remove(victim)
            victims.append(victim)
        return victims

    def _pop_leaf(self) -> _Entry | None:
        """Return the least recently used leaf."""
        while self._leaves:
            tick, _, entry = heapq.heappop(self._leaves)
            entry.is_queued = False
            key = entry.block.key
            if self._entries.get(key) is not entry or self._num_children[key]:
                continue
            if entry.tick == tick:
                return entry
            self._queue(entry)  # used since: try again at its present place
        return None

    def _insert(self, entry: _Entry) -> None:
        """Hold an entry whose parent already counts it."""
        self._entries[entry.block.key] = entry
        self.used_bytes += _cost(entry.block)
        self._queue(entry)

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry.block.key]
        self.used_bytes -= _cost(entry.block)
        self._count_child(entry.block, -1)

    def _queue(self, entry: _Entry) -> None:
        if entry.is_queued or self._num_children.get(entry.block.key):
            return
        self._serial += 1
        entry.is_queued = True
        heapq.heappush(self._leaves, (entry.tick, self._serial, entry))

    def _count_child(self, block: Block, change: int) -> None:
        parent = block.parent_key
        if parent is None:
            return
        self._num_children[parent] += change
        if not self._num_children[parent]:
            del self._num_children[parent]
            if parent in self._entries:  # a leaf again
                self._queue(self._entries[parent])

    def _touch(self, entry: _Entry) -> None:
        entry.tick = self._next_tick()

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick


def _cost(block: Block) -> int:
    return len(block.payload) + BLOCK_OVERHEAD_BYTES
