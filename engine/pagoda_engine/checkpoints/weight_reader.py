"""Fills tensors on the device from files, with a few reads in flight.

The pages of a mapped file come one fault after the other, are not pinned, and end in SIGBUS where
the disk fails (ADR 8). So threads read large chunks, on CPU straight into the tensor, else into
pinned memory, from where the GPU fetches them while the next are read.
Knows bytes and dtypes. Knows nothing of names.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import torch

from pagoda_engine.checkpoints.block_formats import BlockFormat
from pagoda_engine.errors import CheckpointError

CHUNK_BYTES = 16 << 20
BLOCK_CHUNK_ELEMENTS = 1 << 20
"""Of a tensor in blocks: decoding takes some 20 bytes for each."""

NUM_THREADS = 4
"""Chunks in flight. What is staged never exceeds NUM_THREADS * CHUNK_BYTES."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some elements of a file and where they go.

    Attributes:
        path: the file.
        offset: of the first element's first byte.
        stored: dtype or format of blocks in the file.
        destination: ``[N]`` contiguous, on the reader's device, of any float dtype, or of the
            stored one; of blocks, N is a multiple of their elements.
        shift: added to each element, in float32.
    """

    path: Path
    offset: int
    stored: torch.dtype | BlockFormat
    destination: torch.Tensor
    shift: float = 0.0

    def num_bytes(self, num_elements: int) -> int:
        """Return the size in the file of the first elements; of blocks, of whole ones."""
        if isinstance(self.stored, BlockFormat):
            return num_elements // self.stored.num_elements * self.stored.num_bytes
        return num_elements * self.stored.itemsize

    def values(self, staged: torch.Tensor) -> torch.Tensor:
        """Return the elements that these bytes of the file stand for, on their device."""
        if isinstance(self.stored, BlockFormat):
            values = self.stored.decode(staged.view(-1, self.stored.num_bytes)).view(-1)
        else:
            values = staged.view(self.stored)
        return values.float() + self.shift if self.shift else values


class WeightReader:
    """Owns threads, open files and staging memory; `close` gives them back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._threads = ThreadPoolExecutor(NUM_THREADS, "weights")
        self._of_thread = threading.local()
        self._files: dict[Path, int] = {}

    def __enter__(self) -> "WeightReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is in flight, drop what is not, close the files."""
        self._threads.shutdown(cancel_futures=True)
        while self._files:
            os.close(self._files.popitem()[1])

    def read(self, pieces: Iterable[Piece]) -> Iterator[int]:
        """Fill every destination; the device has them all when the iterator ends.

        Yields:
            How many bytes of the files have arrived, chunk by chunk.

        Raises:
            CheckpointError: a file ends early or cannot be read.
        """
        if self._is_cuda:  # whatever used the destinations' memory before is done with it
            torch.cuda.current_stream(self._device).synchronize()
        chunks = [
            self._threads.submit(self._fill, self._file(piece.path), chunk)
            for piece in pieces
            for chunk in _chunks(piece)
        ]
        for chunk in chunks:
            yield chunk.result()

    def _file(self, path: Path) -> int:
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise CheckpointError(path, f"cannot be opened: {error.strerror}") from error
        return self._files[path]

    def _fill(self, file: int, piece: Piece) -> int:
        destination = piece.destination
        is_as_stored = destination.dtype is piece.stored and not piece.shift
        if not self._is_cuda and is_as_stored:
            _read(file, piece, destination.view(torch.uint8))
            return destination.nbytes
        staged = self._stage()[: piece.num_bytes(len(destination))]
        _read(file, piece, staged)
        if not self._is_cuda:
            destination.copy_(piece.values(staged))
            return staged.nbytes
        with torch.cuda.stream(self._of_thread.stream):
            held = staged
            if not is_as_stored:  # converted where that is fast
                held = staged.to(self._device, non_blocking=True)
            destination.copy_(piece.values(held), non_blocking=True)
        self._of_thread.stream.synchronize()  # then the staging memory is free again
        return staged.nbytes

    def _stage(self) -> torch.Tensor:
        """Return this thread's staging memory."""
        if not hasattr(self._of_thread, "memory"):
            if self._is_cuda:
                self._of_thread.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._of_thread.memory = torch.empty(
                CHUNK_BYTES, dtype=torch.uint8, pin_memory=self._is_cuda
            )
        stage: torch.Tensor = self._of_thread.memory
        return stage


def _chunks(piece: Piece) -> Iterator[Piece]:
    if isinstance(piece.stored, BlockFormat):
        num_elements = BLOCK_CHUNK_ELEMENTS  # a multiple of every block's
    else:
        num_elements = CHUNK_BYTES // piece.stored.itemsize
    for first in range(0, len(piece.destination), num_elements):
        offset = piece.offset + piece.num_bytes(first)
        destination = piece.destination[first : first + num_elements]
        yield replace(piece, offset=offset, destination=destination)


def _read(file: int, piece: Piece, memory: torch.Tensor) -> None:
    """Fill ``[N]`` uint8 on the CPU."""
    left, offset = memory.numpy().data, piece.offset
    while left:
        try:
            num_bytes = os.preadv(file, [left], offset)
        except OSError as error:
            raise CheckpointError(piece.path, f"cannot be read: {error.strerror}") from error
        if num_bytes == 0:
            raise CheckpointError(piece.path, f"ends at byte {offset}, within a tensor")
        left, offset = left[num_bytes:], offset + num_bytes
