"""Which adapter is in which slot, and which of them may be asked for.

Knows digests and slots. Knows nothing of sequences: who uses an adapter is told.
"""

from collections.abc import Set as AbstractSet

from pagoda_engine.adapters.adapter import Adapter
from pagoda_engine.adapters.adapter_slots import AdapterSlots
from pagoda_engine.errors import NoAdapterSlotError


class AdapterTable:
    """The loaded adapters of one decoder, by digest.

    One that was unloaded keeps its slot until nobody uses it and the slot is wanted. Not
    thread-safe.
    """

    def __init__(self, slots: AdapterSlots) -> None:
        """Begin with none."""
        self.slots = slots
        self._slot_of: dict[bytes, int] = {}
        self._leaving: set[bytes] = set()

    @property
    def digests(self) -> frozenset[bytes]:
        """Those that may be asked for."""
        return frozenset(self._slot_of.keys() - self._leaving)

    def slot_of(self, digest: bytes) -> int | None:
        """Return the slot of one that may be asked for; None: it is not loaded."""
        return None if digest in self._leaving else self._slot_of.get(digest)

    def load(self, adapter: Adapter, in_use: AbstractSet[bytes]) -> None:
        """Let an adapter be asked for; nothing is copied if it is in a slot already.

        Args:
            adapter: of the decoder, and of the slots' rank at most.
            in_use: digests that sequences or launched steps still need.

        Raises:
            NoAdapterSlotError: all slots hold others that may be asked for or are in use.
        """
        if adapter.digest in self._slot_of:
            self._leaving.discard(adapter.digest)
            return
        slot = self._free_slot(in_use)
        if slot is None:
            raise NoAdapterSlotError(self.slots.num_slots, len(self._leaving))
        self.slots.write(slot, adapter)
        self._slot_of[adapter.digest] = slot

    def unload(self, digest: bytes) -> bool:
        """Let it be asked for no more; False if it could not be asked for anyway."""
        if digest not in self.digests:
            return False
        self._leaving.add(digest)
        return True

    def _free_slot(self, in_use: AbstractSet[bytes]) -> int | None:
        taken = set(self._slot_of.values())
        for slot in range(self.slots.num_slots):
            if slot not in taken:
                return slot
        for digest in sorted(self._leaving - in_use):
            self._leaving.discard(digest)
            return self._slot_of.pop(digest)
        return None
