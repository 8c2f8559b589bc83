"""Which blocks each tier gained and lost since the last look. Thread-safe: both write here."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

# Beyond this many changes at once a snapshot of the tier is smaller than its changes.
_MAX_CHANGES = 1 << 20


class TierName(Enum):
    """The tiers of a store."""

    CPU = "cpu"
    NVME = "nvme"


@dataclass(frozen=True, slots=True)
class TierChanges:
    """What one tier gained and lost; a hash is in one of the two only."""

    stored: tuple[bytes, ...]
    evicted: tuple[bytes, ...]


class ChangeLog:
    """Changes of every tier, the last one of each hash counts."""

    def __init__(self) -> None:
        # Called after the first change since everything was taken, in whichever thread made it.
        self.on_change: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._changes: dict[TierName, dict[bytes, bool]] = {tier: {} for tier in TierName}
        self._has_overflowed = False

    def add(self, tier: TierName, block_hash: bytes, is_stored: bool) -> None:
        """Note one change."""
        with self._lock:
            is_first = not any(self._changes.values())
            changes = self._changes[tier]
            changes[block_hash] = is_stored
            if len(changes) > _MAX_CHANGES:
                changes.clear()
                self._has_overflowed = True
        if is_first:
            self.on_change()

    def take(self) -> dict[TierName, TierChanges] | None:
        """Return each tier's changes since the last call, and forget them; None if too many."""
        with self._lock:
            taken, self._changes = self._changes, {tier: {} for tier in TierName}
            has_overflowed, self._has_overflowed = self._has_overflowed, False
        if has_overflowed:
            return None
        return {
            tier: TierChanges(
                stored=tuple(h for h, is_stored in changes.items() if is_stored),
                evicted=tuple(h for h, is_stored in changes.items() if not is_stored),
            )
            for tier, changes in taken.items()
        }
