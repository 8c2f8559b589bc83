"""Recent prompts of each tenant, within a budget of bytes: what a new one could have in common.

Two things are kept of a prompt. Its end, a hash, tells for long that it was computed. Its tokens,
for as long as it is one of the latest of its family, tell what differs. Families are prompts whose
beginnings are alike, whatever differs in them; of each a few are kept, so that a busy one does not
drive out the others.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np

from pagoda_gateway.accounts.prefixes.explanation import CacheKey, Compared
from pagoda_gateway.accounts.prefixes.outline import Outline
from pagoda_gateway.accounts.prefixes.sketch import FAR_TOKENS, Tokens, sketch
from pagoda_runtime.block_hash import HASH_BYTES, packed_tokens

MAX_RELATIVES = 2
MAX_OF_FAMILY = 8
MIN_FAMILY_OVERLAP = 8  # of up to 32 numbers
END_BYTES = 320  # about what one end takes
PROMPT_BYTES = 8192  # about what one prompt takes beside its tokens, hashes and outline: its sketch
_END_SHARE = 4  # of a tenant's bytes, one part in so many is for ends


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt that has come.

    Attributes:
        number: of prompts it is so many-th.
        num_ready_blocks: of its beginning, that earlier prompts had computed when it came.
        num_known_blocks: that earlier prompts have, computed or not.
        relatives: numbers of earlier prompts that are like it, the likest first.
        replaced: of those that it repeats or goes on from: forgotten once it is computed.
    """

    number: int
    num_ready_blocks: int
    num_known_blocks: int
    relatives: tuple[int, ...]
    replaced: tuple[int, ...] = ()


IsComputed = Callable[[], bool]
"""Says of a request that is not over whether its prompt's blocks are there."""


@dataclass(slots=True)
class _End:
    number: int
    is_computed: IsComputed | None  # None: it is over, and they were

    @property
    def is_ready(self) -> bool:
        return self.is_computed is None or self.is_computed()


@dataclass(slots=True)
class _Remembered:
    key: CacheKey
    token_ids: bytes  # uint32
    hashes: bytes
    outline: Outline
    sketch: tuple[int, ...]
    is_computed: IsComputed | None
    num_inherited_blocks: int  # of its beginning, computed by others
    num_bytes: int

    @property
    def num_ready_blocks(self) -> int:
        if self.is_computed is None or self.is_computed():
            return len(self.hashes) // HASH_BYTES
        return self.num_inherited_blocks

    @property
    def tokens(self) -> Tokens:
        return np.frombuffer(self.token_ids, np.uint32)


@dataclass(slots=True)
class _Tenant:
    ends: OrderedDict[bytes, _End] = field(default_factory=OrderedDict)
    prompts: OrderedDict[int, _Remembered] = field(default_factory=OrderedDict)
    by_mark: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    prompt_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.prompt_bytes + END_BYTES * len(self.ends)

    def forget(self, number: int) -> None:
        prompt = self.prompts.pop(number)
        self.prompt_bytes -= prompt.num_bytes
        for mark in prompt.sketch:
            numbers = self.by_mark[mark]
            numbers.remove(number)
            if not numbers:
                del self.by_mark[mark]

    def forget_oldest(self) -> None:
        """Forget the oldest prompt; without one, the oldest end."""
        if self.prompts:
            self.forget(next(iter(self.prompts)))
        else:
            self.ends.popitem(last=False)


class PrefixMemory:
    """The prompts of one gateway's tenants. Not thread-safe."""

    def __init__(self, *, max_bytes: int, max_tenant_bytes: int) -> None:
        """Keep so much in all, and of one tenant."""
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()  # first: longest without a request
        self._num_bytes = 0
        self._last_number = 0

    @property
    def num_bytes(self) -> int:
        """About what is kept."""
        return self._num_bytes

    def arrive(
        self,
        tenant: str,
        key: CacheKey,
        token_ids: Sequence[int],
        block_hashes: Sequence[bytes],
        outline: Outline,
        is_computed: IsComputed,
    ) -> Arrival:
        """Compare a prompt with those before it, and remember it."""
        known = self._tenants.setdefault(tenant, _Tenant())
        self._tenants.move_to_end(tenant)
        bytes_before = known.num_bytes
        self._last_number += 1
        number = self._last_number
        hashes = b"".join(block_hashes)
        packed = packed_tokens(token_ids)
        marks = sketch(np.frombuffer(packed, np.uint32, min(len(token_ids), FAR_TOKENS)))
        overlaps = Counter(chain.from_iterable(map(known.by_mark.get, marks, repeat(()))))
        relatives = sorted(overlaps, key=lambda n: (-overlaps[n], -n))
        num_ready, num_known = _from_ends(known, block_hashes)
        replaced: list[int] = []
        for relative in list(relatives):
            other = known.prompts[relative]
            if other.key.root != key.root:
                continue
            num_equal = _num_equal_blocks(other.hashes, hashes)
            num_known = max(num_known, num_equal)
            num_ready = max(num_ready, min(num_equal, other.num_ready_blocks))
            if num_equal > 1 and HASH_BYTES * num_equal == len(other.hashes):
                relatives.remove(relative)  # this one repeats it, or goes on from it
                replaced.append(relative)
        prompt = _Remembered(
            key=key,
            token_ids=packed,
            hashes=hashes,
            outline=outline,
            sketch=marks,
            is_computed=is_computed,
            num_inherited_blocks=num_ready,
            num_bytes=PROMPT_BYTES + 4 * len(token_ids) + len(hashes) + outline.num_bytes,
        )
        # Of many that are computed at once and repeat each other, too, and of short ones that are
        # equal: comparing with all of them would take each newcomer longer than the one before.
        family = [
            n
            for n, overlap in overlaps.items()
            if overlap >= MIN_FAMILY_OVERLAP
            or overlap == len(marks) == len(known.prompts[n].sketch)
        ]
        if len(family) >= MAX_OF_FAMILY:
            known.forget(min(replaced or family))
        self._remember(known, number, prompt, block_hashes)
        self._num_bytes += known.num_bytes - bytes_before
        self._keep_within(known)
        return Arrival(
            number, num_ready, num_known, tuple(relatives[:MAX_RELATIVES]), tuple(replaced)
        )

    def settle(
        self, tenant: str, arrival: Arrival, block_hashes: Sequence[bytes], *, is_computed: bool
    ) -> None:
        """Note that a prompt's blocks were computed; forget one whose blocks never were."""
        known = self._tenants.get(tenant)
        if known is None:
            return
        bytes_before = known.num_bytes
        end = known.ends.get(block_hashes[-1]) if block_hashes else None
        prompt = known.prompts.get(arrival.number)
        if is_computed:
            for number in arrival.replaced:
                if number in known.prompts:
                    known.forget(number)
            if end is not None:
                end.is_computed = None
            if prompt is not None:
                prompt.is_computed = None
        else:
            if end is not None and end.number == arrival.number and not end.is_ready:
                del known.ends[block_hashes[-1]]
            if prompt is not None:
                known.forget(arrival.number)
        self._num_bytes += known.num_bytes - bytes_before

    def relatives(self, tenant: str, arrival: Arrival) -> list[Compared]:
        """Return the earlier prompts that are like one, as far as they are still kept."""
        known = self._tenants.get(tenant)
        if known is None:
            return []
        found = [known.prompts.get(number) for number in arrival.relatives]
        return [Compared(p.key, p.tokens, p.outline) for p in found if p is not None]

    def _remember(
        self, known: _Tenant, number: int, prompt: _Remembered, block_hashes: Sequence[bytes]
    ) -> None:
        known.prompts[number] = prompt
        known.prompt_bytes += prompt.num_bytes
        for mark in prompt.sketch:
            known.by_mark[mark].append(number)
        if block_hashes:
            last = block_hashes[-1]
            if last not in known.ends:
                known.ends[last] = _End(number, prompt.is_computed)
            known.ends.move_to_end(last)

    def _keep_within(self, known: _Tenant) -> None:
        """Forget the oldest until both budgets are kept; other tenants' only if they must go."""
        before = known.num_bytes
        max_ends = self._max_tenant_bytes // _END_SHARE // END_BYTES
        while len(known.ends) > max_ends:
            known.ends.popitem(last=False)
        while known.num_bytes > self._max_tenant_bytes:
            known.forget_oldest()
        self._num_bytes += known.num_bytes - before
        while self._num_bytes > self._max_bytes:
            name, idlest = next(iter(self._tenants.items()))
            before = idlest.num_bytes
            if before:
                idlest.forget_oldest()
                self._num_bytes += idlest.num_bytes - before
            if not idlest.num_bytes:
                del self._tenants[name]


def _from_ends(known: _Tenant, block_hashes: Sequence[bytes]) -> tuple[int, int]:
    """Return how many leading blocks earlier prompts end with: computed ones, and all."""
    num_known = 0
    ends = known.ends
    for index in range(len(block_hashes) - 1, -1, -1):
        end = ends.get(block_hashes[index])
        if end is None:
            continue
        num_known = num_known or index + 1
        if end.is_ready:
            return index + 1, num_known
    return 0, num_known


def _num_equal_blocks(earlier: bytes, later: bytes) -> int:
    """Return how many leading hashes are equal: as they are chained, those before them are, too."""
    low, high = 0, min(len(earlier), len(later)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        last = slice((middle - 1) * HASH_BYTES, middle * HASH_BYTES)
        if earlier[last] == later[last]:
            low = middle
        else:
            high = middle - 1
    return low
