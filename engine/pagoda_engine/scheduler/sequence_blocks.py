"""Takes, grows, registers and frees the blocks of sequences.

Knows sequences and the pool. Knows nothing of queues or budgets.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.cache.block_pool import NO_BLOCKS, BlockPool
from pagoda_engine.cache.layer_groups import most_windowed
from pagoda_engine.scheduler.part_window import PartWindow
from pagoda_engine.scheduler.sequence import NULL_BLOCK, Sequence, SequenceState

BlockHasher = Callable[[bytes, SequenceOf[int]], bytes]
"""(parent hash, token ids of one block) -> 16 bytes."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Blocks of a sequence that is to be admitted.

    Attributes:
        num_null: leading ones that nothing will read.
        hits: hashes of those behind, which are here.
        num_new: those behind them, to be written.
        num_cached: leading ones whose tokens need not be computed.
        windowed: which of all its blocks it takes with their windowed parts.
    """

    num_null: int
    hits: SequenceOf[bytes]
    num_new: int
    num_cached: int
    windowed: range = NO_BLOCKS


class SequenceBlocks:
    """The only caller of the pool on behalf of sequences.

    Where every layer attends to a window, blocks behind it are given back as a sequence goes on: a
    prompt of any length and its output hold the blocks of a window, and of a few chunks. Where some
    layers do (`part_window`), the same is true of the blocks' windowed parts.

    Attributes:
        pool: where blocks come from.
        block_size: tokens of a block.
        has_window: any layer has one, so sequences give back blocks or parts as they go on.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        hash_block: BlockHasher,
        enable_prefix_caching: bool,
        window: int | None = None,
        part_window: int | None = None,
        max_num_batched_tokens: int = 0,
    ) -> None:
        """Begin without sequences.

        Args:
            pool: where blocks come from.
            block_size: tokens of a block.
            hash_block: see BlockHasher.
            enable_prefix_caching: reuse blocks by hash.
            window: latest tokens that any layer attends to; None: one attends to all.
            part_window: latest tokens that any layer of the windowed parts attends to; None: blocks
                have no such parts.
            max_num_batched_tokens: of one step; matters with a window alone.
        """
        self._window = window
        self._parts = None
        if part_window is not None:
            self._parts = PartWindow(
                part_window,
                pool,
                block_size=block_size,
                max_num_batched_tokens=max_num_batched_tokens,
            )
        self.has_window = window is not None or part_window is not None
        self.pool = pool
        self.block_size = block_size
        self._hash_block = hash_block
        self._enable_prefix_caching = enable_prefix_caching
        # Full blocks of known tokens whose KV is on its way: hash -> who computes or imports it.
        self._producers: dict[bytes, Sequence] = {}
        # Of a prompt.
        self._max_held = most_windowed(window or 0, block_size, max_num_batched_tokens)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold the KV of this many tokens."""
        return -(-num_tokens // self.block_size)

    def num_places(self, sequence: Sequence) -> int:
        """Return the places of the pool that a sequence holds, shared ones for each beam."""
        num_parts = self.pool.parts_per_block - 1
        if sequence.siblings:
            members = sequence.members
            num_windowed = sum(len(member.windowed) for member in members)
            return sum(len(m.held_block_ids) for m in members) + num_parts * num_windowed
        num_blocks = len(sequence.block_ids) - sequence.num_null_blocks
        return num_blocks + num_parts * len(sequence.windowed)

    def num_places_for(self, sequence: Sequence) -> int:
        """Return the places that a sequence's tokens so far take at the most, if none is shared."""
        num_blocks = self.num_blocks_for(len(sequence.token_ids))
        num_windowed = 0
        if self._parts is not None:
            num_windowed = min(num_blocks, self._parts.most_blocks)
        return num_blocks + (self.pool.parts_per_block - 1) * num_windowed

    def num_exportable(self, num_tokens: int, *, is_last: bool) -> int:
        """Return the blocks that this many computed tokens complete; at the end the last too."""
        return self.num_blocks_for(num_tokens) if is_last else num_tokens // self.block_size

    def can_reserve(
        self, sequence: Sequence, num_spare_blocks: int, victims: Iterable[Sequence] = ()
    ) -> bool:
        """Tell whether `reserve` would succeed, once the victims' blocks are free. No side effect.

        It may find a longer prefix cached then, never a shorter one.
        """
        wanted = self._wanted(sequence)
        members = [member for victim in victims for member in victim.members]
        num_free = self.pool.num_allocatable(
            wanted.hits,
            Counter(block_id for member in members for block_id in member.held_block_ids),
            windowed=wanted.windowed,
            windowed_given_back=Counter(b for m in members for b in m.windowed_block_ids),
        )
        return num_free >= self._num_places(wanted, num_spare_blocks)

    def reserve(self, sequence: Sequence, num_spare_blocks: int) -> bool:
        """Take blocks for all tokens of a sequence, sharing the longest cached prefix.

        With a window, for those that it computes first: `extend` takes the others, and other
        blocks' windowed parts. The last token is never part of a shared block: its logits must be
        computed, which writes its KV. Returns False, and changes nothing, unless
        `num_spare_blocks` blocks stay free.
        """
        wanted = self._wanted(sequence)
        num_free = self.pool.num_allocatable(wanted.hits, windowed=wanted.windowed)
        if num_free < self._num_places(wanted, num_spare_blocks):
            return False
        block_ids = self.pool.allocate(wanted.hits, wanted.num_new, windowed=wanted.windowed)
        assert block_ids is not None
        sequence.windowed = wanted.windowed
        sequence.block_ids = [NULL_BLOCK] * wanted.num_null + block_ids
        sequence.num_null_blocks = wanted.num_null
        sequence.num_cached_tokens = wanted.num_cached * self.block_size
        sequence.num_computed_tokens = sequence.num_launched_tokens = sequence.num_cached_tokens
        sequence.num_registered_blocks = wanted.num_cached
        sequence.prefill_end = len(sequence.token_ids)
        if self._enable_prefix_caching:
            num_full_blocks = len(sequence.token_ids) // self.block_size
            self._extend_hashes(sequence, num_full_blocks)
            first = max(wanted.num_cached, wanted.num_null)
            for block_hash in sequence.block_hashes[first:num_full_blocks]:
                self._producers.setdefault(block_hash, sequence)
        return True

    def missing_hashes(self, sequence: Sequence) -> SequenceOf[bytes]:
        """Return the hashes of the blocks whose KV a sequence that has its blocks lacks.

        Of full ones, but for that of its last token; none if it must compute whatever is known, or
        has not the blocks of all its tokens at once, since they move with a window.
        """
        if self.has_window or not self._may_share(sequence):
            return ()
        num_full = (len(sequence.token_ids) - 1) // self.block_size
        return sequence.block_hashes[sequence.num_cached_tokens // self.block_size : num_full]

    def should_wait(self, sequence: Sequence) -> bool:
        """Tell whether the first block that `reserve` would not find is being made by another.

        Waiting for one that is computed here costs nothing, since it is older or as far: its chunks
        come first. Unless it has a higher priority number: others may come before it for long, so
        it is not waited for. An import takes as long as the prefill elsewhere and the transfer, so
        that is waited for only by who needs nothing else.
        """
        num_cached = self._match(sequence)
        wanted = sequence.block_hashes[
            num_cached : (len(sequence.token_ids) - 1) // self.block_size
        ]
        producer = self._producers.get(wanted[0]) if wanted else None
        if producer is None or producer.priority > sequence.priority:
            return False
        return not producer.is_import_pending or wanted[-1] in self._producers

    def extend(self, sequence: Sequence) -> int:
        """Take blocks for the next tokens of a prompt, as far as there are any.

        Returns:
            For how many tokens there is room; 0: it has to wait until blocks are free.
        """
        if self._window is not None:
            num_wanted = self._last_block(sequence, sequence.num_null_blocks)
            num_wanted -= len(sequence.block_ids)
            num_new = max(0, min(num_wanted, self.pool.num_free_blocks))
            sequence.block_ids.extend(self.pool.allocate((), num_new) or ())
        num_ready = len(sequence.block_ids)
        if self._parts is not None:
            held = sequence.windowed
            end = min(num_ready, max(held.start + self._parts.most_blocks, held.stop))
            num_new = self.pool.attach_windowed(sequence.block_ids[held.stop : end])
            num_ready = held.stop + num_new
            sequence.windowed = range(held.start, num_ready)
        return num_ready * self.block_size - sequence.num_launched_tokens

    def needs_block(self, sequence: Sequence) -> bool:
        """Tell whether the KV of the sequence's last token has no block yet, in any beam."""
        if sequence.siblings:
            return any(self._lacks_block(member) for member in sequence.members)
        num_tokens = len(sequence.token_ids) + sequence.num_unread_tokens
        return num_tokens > len(sequence.block_ids) * self.block_size

    def num_free_slots(self, sequence: Sequence) -> int:
        """Return the slots of its blocks behind its last token."""
        return len(sequence.block_ids) * self.block_size - sequence.num_tokens

    def trim(self, sequence: Sequence) -> None:
        """Give back the blocks behind its last token, taken for tokens that did not come."""
        num_blocks = self.num_blocks_for(sequence.num_tokens)
        if num_blocks < len(sequence.block_ids):
            self._drop_windowed(sequence, num_blocks, len(sequence.block_ids))
            self.pool.free(sequence.block_ids[num_blocks:])
            # Another list, as after a preemption: what was told of the old one is void.
            sequence.block_ids = sequence.block_ids[:num_blocks]

    def grow(self, sequence: Sequence) -> bool:
        """Take one more block, for the first beam that lacks one. Returns False if none is free."""
        has_parts = self._parts is not None
        block_id = self.pool.allocate_one(windowed=has_parts)
        if block_id is None:
            return False
        member = sequence
        if sequence.siblings:
            member = next(filter(self._lacks_block, sequence.siblings), sequence)
        index = len(member.block_ids)
        member.block_ids.append(block_id)
        if has_parts:
            assert member.windowed.stop == index, "a decode lacks parts of a block before"
            member.windowed = range(member.windowed.start, index + 1)
        if sequence.beams is not None and index * self.block_size < member.num_computed_tokens:
            sequence.beams.copy_block(sequence.block_ids[index], block_id)
        return True

    def fork(self, leader: Sequence, parents: SequenceOf[int]) -> None:
        """Let beams go on from others: full blocks are shared, partly filled ones copied.

        What a beam that nobody follows had becomes the copy, so blocks are taken only when the
        first beam becomes several: by `grow`, before the next step.

        Args:
            leader: whose members there are as many of as of `parents`, new ones without blocks.
            parents: for each member which one's blocks it goes on from.
        """
        assert leader.beams is not None
        members = leader.members
        num_full, num_partial = divmod(leader.num_computed_tokens, self.block_size)
        num_null = leader.num_null_blocks  # of each that has blocks
        held = leader.windowed  # so far as the blocks are full, of each that has blocks
        windowed = slice(held.start - num_null, num_full - num_null)
        tables = [member.block_ids for member in members]
        full = [tables[parent][num_null:num_full] for parent in parents]
        partial = [table[num_full:] for table in tables]
        for block_ids in full:  # before anything is given back
            self.pool.share(block_ids)
            self.pool.share_windowed(block_ids[windowed])
        for table in tables:
            self.pool.drop_windowed(table[num_null:num_full][windowed])
            self.pool.free(table[num_null:num_full])
        spare = [partial[i] for i in range(len(members)) if i not in parents and partial[i]]
        is_taken: set[int] = set()
        for member, parent, block_ids in zip(members, parents, full, strict=True):
            if not num_partial:
                last = []
            elif parent not in is_taken:
                is_taken.add(parent)
                last = partial[parent]
            elif spare:
                last = spare.pop()
                leader.beams.copy_block(partial[parent][0], last[0])
            else:
                last = []
            # Another list, as after a preemption: what was told of the old one is void.
            member.block_ids = [NULL_BLOCK] * num_null + block_ids + last
            member.num_null_blocks = num_null
            if self._parts is not None:
                member.windowed = range(held.start, len(member.block_ids))

    def _lacks_block(self, sequence: Sequence) -> bool:
        return sequence.num_tokens > len(sequence.block_ids) * self.block_size

    def num_growing(self, sequence: Sequence, num_more: int = 0) -> int:
        """Return how many blocks the sequence may ask for before one step, until it ends.

        `num_more`: blocks that it has beside those that it has now.
        """
        if sequence.request.prefill_only:
            return 0
        if sequence.beams is not None:
            return sequence.num_seats
        num_slots = (len(sequence.block_ids) + num_more) * self.block_size
        return int(sequence.max_num_tokens - 1 > num_slots)

    def num_growing_of(self, sequences: Iterable[Sequence]) -> int:
        """Return how many blocks all of these may ask for before one step."""
        size = self.block_size
        return sum(
            [  # a plain one asks for one block, as long as it has not all
                s.max_num_tokens - 1 > len(s.block_ids) * size
                if s.is_plain
                else self.num_growing(s)
                for s in sequences
            ]
        )

    def register_computed(self, sequence: Sequence) -> None:
        """Make every block that is full by now reusable; of a search those of its prompt alone."""
        num_full_blocks = sequence.num_computed_tokens // self.block_size
        if not self._enable_prefix_caching or num_full_blocks <= sequence.num_registered_blocks:
            return
        if sequence.beams is not None and sequence.beams.search.length:
            return
        self._extend_hashes(sequence, num_full_blocks)
        block_ids, hashes = sequence.block_ids, sequence.block_hashes
        first = max(sequence.num_registered_blocks, sequence.num_null_blocks)
        for i in range(first, num_full_blocks):
            self.pool.register(block_ids[i], hashes[i])
            self._no_longer_producing(sequence, hashes[i])
        sequence.num_registered_blocks = num_full_blocks

    def first_needed_block(self, sequence: Sequence, position: int) -> int:
        """Return the first block that a query at a position, or a later one, or a peer reads."""
        if self._window is None:
            return 0
        first = max(0, position + 1 - self._window) // self.block_size
        request = sequence.request
        return min(first, request.first_export_block) if request.prefill_only else first

    def drop_behind_window(self, sequence: Sequence) -> None:
        """Give back the blocks that no query to come sees; full ones stay cached.

        Steps in flight compute later positions than those that were read.
        """
        if self._parts is not None:
            first = self._parts.first_needed(sequence)
            self._drop_windowed(sequence, sequence.windowed.start, first)
        if self._window is None:
            return
        held = sequence.num_null_blocks
        first = self.first_needed_block(sequence, sequence.num_computed_tokens)
        if first > held:
            self.pool.free(sequence.block_ids[held:first])
            sequence.block_ids[held:first] = [NULL_BLOCK] * (first - held)
            sequence.num_null_blocks = first

    def lacks_window(self, sequence: Sequence) -> bool:
        """Tell whether the next token to compute sees tokens whose blocks were not reserved."""
        if self._parts is not None:
            return self._parts.first_seen(sequence.num_computed_tokens) < sequence.windowed.start
        first = self.first_needed_block(sequence, sequence.num_computed_tokens)
        return first < sequence.num_null_blocks

    def forget(self, sequence: Sequence) -> None:
        """Let nobody reuse what is known of the sequence's KV, whoever computed it."""
        self.pool.forget(sequence.block_hashes)

    def free(self, sequence: Sequence) -> None:
        """Give all blocks back; full ones stay cached."""
        for block_hash in sequence.block_hashes[sequence.num_registered_blocks :]:
            self._no_longer_producing(sequence, block_hash)
        for member in sequence.members:
            self.pool.drop_windowed(member.windowed_block_ids)
            self.pool.free(member.held_block_ids)
            member.windowed = NO_BLOCKS
            member.block_ids = []
            member.num_null_blocks = 0
        sequence.num_computed_tokens = sequence.num_launched_tokens = 0
        sequence.num_unverified_tokens = 0
        sequence.num_registered_blocks = 0

    def check_invariants(self, sequences: SequenceOf[Sequence]) -> None:
        """Recount: who holds blocks, and that what is on its way is yet to be made by one of them.

        `sequences`: all.
        """
        members = [member for sequence in sequences for member in sequence.members]
        self.pool.check_invariants(
            Counter(i for s in members for i in s.held_block_ids),
            Counter(i for s in members for i in s.windowed_block_ids),
        )
        holders = {id(s): s for s in sequences if s.block_ids}
        for block_hash, producer in self._producers.items():
            assert id(producer) in holders, "a block is made by nobody"
            assert block_hash in producer.block_hashes[producer.num_registered_blocks :]

    def check_parts(self, sequence: Sequence, num_written: int) -> None:
        """Raise AssertionError unless a running sequence, or beam, has the parts that it needs."""
        if self._parts is None:
            assert not sequence.windowed
        elif sequence.state is SequenceState.RUNNING:
            self._parts.check(sequence, num_written)

    def _last_block(self, sequence: Sequence, num_null: int) -> int:
        """Return the end of the blocks that a sequence gets so far, with so many given back.

        All of its tokens', unless windows let it pass them on and it can give way to others.
        """
        num_blocks = self.num_blocks_for(len(sequence.token_ids))
        if self._window is None or not sequence.is_preemptible or sequence.is_import_pending:
            return num_blocks
        return min(num_blocks, num_null + self._max_held)

    def _wanted(self, sequence: Sequence) -> _Wanted:
        num_cached = self._match(sequence)
        num_null = self.first_needed_block(sequence, num_cached * self.block_size)
        if sequence.is_handed_over:
            # Nothing is computed here but, at the most, the last token.
            num_null = self.first_needed_block(sequence, len(sequence.token_ids) - 1)
            num_cached = num_cached if num_cached > num_null else 0
        hits = sequence.block_hashes[num_null:num_cached]
        num_new = self._last_block(sequence, num_null) - max(num_cached, num_null)
        windowed = NO_BLOCKS if self._parts is None else self._parts.wanted(sequence, num_cached)
        return _Wanted(num_null, hits, num_new, num_cached, windowed)

    def num_partial(self, sequence: Sequence, first: int, end: int) -> int:
        """Return of how many of the blocks [first, end) a hand-over leaves windowed parts out."""
        if self._parts is None:
            return 0
        return min(end, max(first, self._parts.first_handed_over(sequence))) - first

    def _drop_windowed(self, sequence: Sequence, start: int, stop: int) -> None:
        """Give back the windowed parts of blocks at one end of those that have them."""
        held = sequence.windowed
        start, stop = max(start, held.start), min(stop, held.stop)
        if start < stop:
            self.pool.drop_windowed(sequence.block_ids[start:stop])
            is_begin = start == held.start
            sequence.windowed = range(stop, held.stop) if is_begin else range(held.start, start)

    def _num_places(self, wanted: _Wanted, num_spare_blocks: int) -> int:
        """Return the places that must be free for what is wanted, so that so many blocks stay."""
        new = self.pool.num_places_for(len(wanted.hits), wanted.num_new, wanted.windowed)
        return new + num_spare_blocks * self.pool.parts_per_block

    def _match(self, sequence: Sequence) -> int:
        """Return how many leading blocks need not be computed: what they are needed for is here."""
        if not self._may_share(sequence):
            return 0
        max_shared_blocks = (len(sequence.token_ids) - 1) // self.block_size
        self._extend_hashes(sequence, max_shared_blocks)
        hashes = sequence.block_hashes[:max_shared_blocks]
        if self._parts is not None:
            return self._parts.match(hashes)
        if self._window is None:
            return self.pool.match(hashes)
        longest = num_here = 0  # blocks in a row that are here, up to this one
        for end in range(1, max_shared_blocks + 1):
            num_here = num_here + 1 if self.pool.match(hashes[end - 1 : end]) else 0
            if num_here >= end - self.first_needed_block(sequence, end * self.block_size):
                longest = end
        return longest

    def _may_share(self, sequence: Sequence) -> bool:
        is_scored = sequence.request.sampling.num_prompt_logprobs is not None
        return self._enable_prefix_caching and not is_scored

    def _no_longer_producing(self, sequence: Sequence, block_hash: bytes) -> None:
        if self._producers.get(block_hash) is sequence:
            del self._producers[block_hash]

    def _extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        hashes, size = sequence.block_hashes, self.block_size
        for i in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else sequence.request.cache_root
            tokens = sequence.token_ids[i * size : (i + 1) * size]
            hashes.append(self._hash_block(parent, tokens))
