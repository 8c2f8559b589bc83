"""Tier 2: blocks in segment files under a hard byte budget; a restart finds them again.

Space is taken back by dropping the oldest segment: over the budget, or once the device is full.
Its blocks that were used since they were written move on to a new segment, at most half of it, so
that dropping always gains room. What cannot be read is lost, what cannot be written is dropped;
neither is an error of a caller. A folder that was removed is made again, and what it had is
forgotten. One thread appends; any thread reads.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pagoda_kvstore.block import Block, BlockKey
from pagoda_kvstore.errors import NvmeFolderInUseError
from pagoda_kvstore.tiers.device_state import DeviceState, is_no_space, is_passing
from pagoda_kvstore.tiers.nvme_folder import NvmeFolder
from pagoda_kvstore.tiers.segment import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SegmentHeader,
    SegmentScan,
    SegmentWriter,
    read_blocks,
)

# Segments open for appending: one for each (KV identity, block size) in use.
_MAX_WRITERS = 8

OnChange = Callable[
    [BlockKey, bool], None
]  # (key, is stored now), called in whichever thread changed it

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Segment:
    header: SegmentHeader
    path: Path
    num_slots: int
    blocks: dict[BlockKey, "_Place"] = field(default_factory=dict)  # live ones only
    is_unreadable: bool = False

    @property
    def num_bytes(self) -> int:
        return self.header.offset(self.num_slots)


@dataclass(slots=True, eq=False)
class _Place:
    segment: _Segment
    slot: int
    is_used: bool = False  # asked for since it was written


class NvmeTier:
    """Blocks in segment files. `used_bytes`, headers included, never exceeds `budget_bytes`."""

    def __init__(
        self,
        folder: NvmeFolder,
        *,
        budget_bytes: int,
        segment_bytes: int,
        on_change: OnChange = lambda key, is_stored: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Scan the folder. Blocks until every header is read; drops what exceeds the budget."""
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.num_hits = self.num_misses = self.num_evictions = self.num_bad_digests = 0
        self.num_dropped = 0  # blocks not written: no room, or an I/O error
        self.num_read_errors = 0
        self.device = DeviceState(folder.path, clock)
        self._folder, self._segment_bytes = folder, min(segment_bytes, budget_bytes)
        self._on_change = on_change
        self._lock = threading.Lock()  # guards the index, not the files
        self._index: dict[BlockKey, _Place] = {}
        self._segments: dict[int, _Segment] = {}  # by sequence, oldest first
        self._writers: dict[tuple[bytes, int], SegmentWriter] = {}
        self._next_sequence = 1
        self._read_folder()

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._index

    def keys(self) -> Iterator[BlockKey]:
        """Return every key held, as of now."""
        with self._lock:
            return iter(list(self._index))

    def block_bytes(self, key: BlockKey) -> int:
        """Return the payload bytes of a block, 0 if it is not held."""
        place = self._index.get(key)
        return place.segment.header.block_bytes if place else 0

    def fits(self, block_bytes: int) -> bool:
        """Return whether a block of this size can ever be written."""
        return HEADER_BYTES + RECORD_HEADER_BYTES + block_bytes <= self._segment_bytes

    def mark_used(self, key: BlockKey) -> None:
        """Note that a block was asked for, in whichever tier: it outlives its segment."""
        place = self._index.get(key)
        if place is not None:
            place.is_used = True

    def read(self, keys: Sequence[BlockKey]) -> list[Block]:
        """Read leading blocks, up to the first that is missing or damaged. Blocks on file I/O.

        A block whose bytes changed is dropped, counted and a miss.
        """
        blocks: list[Block] = []
        for run in self._runs(keys):
            place = run[0][1]
            try:
                slots = [place.slot for _, place in run]
                found = read_blocks(place.segment.path, place.segment.header, slots)
            except OSError as error:  # dropped meanwhile, or the device failed: a miss either way
                found = []
                self._forget_unreadable(place.segment, run, error)
            for (key, place), block in zip(run, found, strict=False):
                if block is None or block.key != key or not block.is_intact():
                    self._forget_damaged(key, place)
                    break
                place.is_used = True
                blocks.append(block)
            else:
                if len(found) == len(run):
                    continue
            break
        self.num_hits += len(blocks)
        self.num_misses += len(blocks) < len(keys)
        return blocks

    def append(self, blocks: Sequence[Block]) -> int:
        """Write blocks that are not held yet; return how many. Blocks on I/O; one thread only.

        Without blocks it only looks whether the folder is still there.
        """
        self._look_after_folder()
        todo = deque(blocks)
        num_written = 0
        while todo:
            block = todo.popleft()
            if block.key in self._index:
                continue
            is_written = self.device.may_write() and self._write(block, todo)
            num_written += is_written
            self.num_dropped += not is_written
        return num_written

    def close(self) -> None:
        """Close the files and let go of the folder."""
        for kind in list(self._writers):
            self._close_writer(kind)
        self._folder.close()

    def check_invariants(self) -> None:
        """Recount everything from first principles; for tests. No append may run meanwhile."""
        paths = [self._folder.segment_path(sequence) for sequence in self._segments]
        assert self.used_bytes == sum(path.stat().st_size for path in paths) <= self.budget_bytes
        assert self.used_bytes == sum(segment.num_bytes for segment in self._segments.values())
        live = {
            key: place
            for segment in self._segments.values()
            for key, place in segment.blocks.items()
        }
        assert live == self._index
        assert all(self._segments[p.segment.header.sequence] is p.segment for p in live.values())
        assert list(self._segments) == sorted(self._segments)
        assert all(segment.num_bytes <= self._segment_bytes for segment in self._segments.values())

    def _runs(self, keys: Sequence[BlockKey]) -> list[list[tuple[BlockKey, _Place]]]:
        """Split the leading keys that are held into runs of one segment."""
        runs: list[list[tuple[BlockKey, _Place]]] = []
        for key in keys:
            place = self._index.get(key)
            if place is None:
                break
            if runs and runs[-1][-1][1].segment is place.segment:
                runs[-1].append((key, place))
            else:
                runs.append([(key, place)])
        return runs

    def _look_after_folder(self) -> bool:
        """Take the folder again if it was removed, or replaced; return whether it was taken."""
        if self._folder.is_held():
            return False
        self._forget_all()
        for kind in list(self._writers):
            self._close_writer(kind)
        with self._lock:
            self._segments.clear()
            self.used_bytes = 0
        if not self.device.may_write():
            return False
        try:
            self._folder.take_again()
            self._read_folder()
        except (OSError, NvmeFolderInUseError) as error:
            self.device.refused(error)
            return False
        logger.warning("%s was gone, and is made again", self._folder.path)
        return True

    def _forget_all(self, missed: _Segment | None = None) -> None:
        """Hold no block: the folder is gone. In whichever thread has found out.

        `missed`: the segment that could not be read; if it is held no more, the folder that is
        there now has been taken meanwhile.
        """
        with self._lock:
            if missed and self._segments.get(missed.header.sequence) is not missed:
                return
            forgotten = list(self._index)
            self._index.clear()
            for segment in self._segments.values():
                segment.blocks.clear()
        if forgotten:
            logger.warning("%s is gone, with %d blocks", self._folder.path, len(forgotten))
        for key in forgotten:
            self._on_change(key, False)

    def _write(self, block: Block, survivors: deque[Block]) -> bool:
        """Write a block; return whether there was room. A full device loses oldest segments."""
        while True:
            try:
                writer = self._writer_with_room(block, survivors)
                is_written = writer is not None and self._append_one(writer, block)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and self._look_after_folder():
                    continue
                victim = self._choose_victim() if is_no_space(error) else None
                if victim is None:
                    self.device.refused(error)
                    return False
                survivors.extend(self._drop(victim))
            else:
                self.device.taken()
                return is_written

    def _append_one(self, writer: SegmentWriter, block: Block) -> bool:
        slot = writer.append(block)
        segment = self._segments[writer.header.sequence]
        place = _Place(segment, slot)
        with self._lock:
            segment.num_slots = writer.num_slots
            segment.blocks[block.key] = self._index[block.key] = place
            self.used_bytes += writer.header.stride
        self._on_change(block.key, True)
        return True

    def _writer_with_room(self, block: Block, survivors: deque[Block]) -> SegmentWriter | None:
        """Return an open segment that can take `block` within the budget, None if none can be.

        Blocks that move on from dropped segments are added to `survivors`.
        """
        block_bytes = len(block.payload)
        kind = (block.key.kv_identity, block_bytes)
        need = RECORD_HEADER_BYTES + block_bytes
        if not self.fits(block_bytes):
            return None
        writer = self._writers.get(kind)
        if writer is not None and writer.num_bytes + need > self._segment_bytes:
            self._close_writer(kind)
            writer = None
        while self.used_bytes + need + (HEADER_BYTES if writer is None else 0) > self.budget_bytes:
            victim = self._choose_victim()
            if victim is None:
                return None
            survivors.extend(self._drop(victim))
            writer = self._writers.get(kind)  # it may have been the victim
        return writer or self._open_writer(kind)

    def _open_writer(self, kind: tuple[bytes, int]) -> SegmentWriter:
        if len(self._writers) >= _MAX_WRITERS:
            self._close_writer(next(iter(self._writers)))
        header = SegmentHeader(*kind, sequence=self._next_sequence)
        path = self._folder.segment_path(header.sequence)
        self._next_sequence += 1
        try:
            writer = SegmentWriter(path, header)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        with self._lock:
            self._segments[header.sequence] = _Segment(header, path, 0)
            self.used_bytes += HEADER_BYTES
        self._writers[kind] = writer
        return writer

    def _choose_victim(self) -> _Segment | None:
        """Return the oldest segment with records."""
        return next((segment for segment in self._segments.values() if segment.num_slots), None)

    def _drop(self, segment: _Segment) -> list[Block]:
        """Delete a segment and return the blocks of it that are worth writing again."""
        survivors = self._survivors(segment)
        kind = (segment.header.kv_identity, segment.header.block_bytes)
        writer = self._writers.get(kind)
        if writer is not None and writer.path == segment.path:
            self._close_writer(kind)
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s cannot be removed, it keeps its space: %s", segment.path, error)
        with self._lock:
            del self._segments[segment.header.sequence]
            self.used_bytes -= segment.num_bytes
            for key in segment.blocks:
                self._index.pop(key, None)
            self.num_evictions += len(segment.blocks) - len(survivors)
        for key in segment.blocks:
            self._on_change(key, False)
        return survivors

    def _survivors(self, segment: _Segment) -> list[Block]:
        with self._lock:
            places = list(segment.blocks.values())
        used = sorted(place.slot for place in places if place.is_used)
        slots = used[: segment.num_slots // 2]
        try:
            blocks = read_blocks(segment.path, segment.header, slots)
        except OSError as error:
            self._note_unreadable(segment, error)
            return []
        return [block for block in blocks if block is not None and block.is_intact()]

    def _close_writer(self, kind: tuple[bytes, int]) -> None:
        """Append no more to a segment. What the device then loses is found by its digest."""
        writer = self._writers.pop(kind)
        try:
            writer.close()
        except OSError as error:
            logger.warning("%s is not all on its device: %s", writer.path, error)

    def _note_unreadable(self, segment: _Segment, error: OSError) -> None:
        self.num_read_errors += 1
        if not segment.is_unreadable:
            segment.is_unreadable = True
            logger.warning("%s cannot be read, its blocks are lost: %s", segment.path, error)

    def _forget_unreadable(
        self, segment: _Segment, run: Sequence[tuple[BlockKey, _Place]], error: OSError
    ) -> None:
        """Hold these blocks no more, so that they may be written again elsewhere."""
        if is_passing(error):
            self.num_read_errors += 1
            return
        if isinstance(error, FileNotFoundError) and not self._folder.is_held():
            self.num_read_errors += 1
            self._forget_all(segment)
            return
        forgotten: list[BlockKey] = []
        with self._lock:
            for key, place in run:
                if self._index.get(key) is place:  # else dropped while it was being read
                    del self._index[key], segment.blocks[key]
                    forgotten.append(key)
        if forgotten:
            self._note_unreadable(segment, error)
        for key in forgotten:
            self._on_change(key, False)

    def _forget_damaged(self, key: BlockKey, place: _Place) -> None:
        with self._lock:
            if self._index.get(key) is not place:
                return  # dropped while it was being read: nothing is damaged
            del self._index[key]
            del place.segment.blocks[key]
            self.num_bad_digests += 1
        logger.warning("damaged block in %s, slot %d: dropped", place.segment.path.name, place.slot)
        self._on_change(key, False)

    def _read_folder(self) -> None:
        """Hold what lies in the folder, within the budget."""
        scans, refused = self._folder.scan()
        self.num_refused_segments = len(refused)
        for scan in scans:
            self._adopt(scan)
        found = [scan.header.sequence for scan in scans] + [_sequence_of(path) for path in refused]
        self._next_sequence = max([self._next_sequence, *(number + 1 for number in found)])
        while self.used_bytes > self.budget_bytes:
            self._drop(next(iter(self._segments.values())))

    def _adopt(self, scan: SegmentScan) -> None:
        header = scan.header
        segment = _Segment(header, self._folder.segment_path(header.sequence), scan.num_slots)
        with self._lock:
            self._segments[header.sequence] = segment
            self.used_bytes += segment.num_bytes
            for record in scan.records:
                key = BlockKey(header.kv_identity, record.block_hash)
                if key not in self._index:
                    segment.blocks[key] = self._index[key] = _Place(segment, record.slot)
            adopted = list(segment.blocks)  # readers may drop some from now on
        for key in adopted:
            self._on_change(key, True)
        kind = (header.kv_identity, header.block_bytes)
        if kind in self._writers:
            self._close_writer(kind)
        if len(self._writers) < _MAX_WRITERS:  # the newest of a kind is continued
            try:
                self._writers[kind] = SegmentWriter(segment.path, header, scan.num_slots)
            except OSError as error:
                logger.warning("%s is not continued: %s", segment.path, error)


def _sequence_of(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else 0
