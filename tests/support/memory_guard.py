"""A memory checker for Triton's interpreter: what would be an illegal access or a race on a GPU.

The interpreter follows any pointer and runs one program after the other, so a kernel that reads a
little too far, or two programs that write to one place, pass there and fail on a device, now and
then. Here every access is looked at: is it within the memory of the launch's tensors, aligned to
its size, and ordered against all others that touch the same bytes?

Ordered are accesses of one program, and those that atomics order: an acquiring one sees what was
stored before the releasing ones that came before it at the same address. What its threads have
stored a program must neither load nor release without a barrier in between: one thread knows
nothing of the others.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from triton.runtime import interpreter

_NOBODY, _MANY = 0, -1
_MAX_FOLLOWED_BYTES = 1 << 26
"""Of larger storages only the bounds are looked at."""


class MemoryFault(AssertionError):
    """A kernel did something that no GPU promises to survive."""


class _Memory:
    """One storage: who touched each byte last, as numbers of segments.

    A segment is what one program does between two of its atomics.

    Attributes:
        start: address.
        num_bytes: of the storage.
        is_followed: the rest is there.
        stored: segment, or nobody.
        loaded: segment, nobody or many.
        atomic: segment, or nobody.
        interval: between which barriers of its program a byte was stored.
        content: the bytes themselves.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.start = storage.data_ptr()
        self.num_bytes = storage.nbytes()
        self.is_followed = self.num_bytes <= _MAX_FOLLOWED_BYTES
        if self.is_followed:
            self.stored, self.loaded, self.atomic, self.interval = np.zeros(
                (4, self.num_bytes), np.int32
            )
            as_bytes = ctypes.c_uint8 * self.num_bytes
            self.content = np.frombuffer(as_bytes.from_address(self.start), np.uint8)


class LaunchGuard:
    """Looks at every access of one launch. Programs run one after another."""

    def __init__(self, kernel: str, tensors: list[torch.Tensor]) -> None:
        self._kernel = kernel
        self._program: object = None
        self._segment = 0
        self._interval = 0
        self._has_stored = False  # in this interval
        self._acquired: set[int] = set()
        self._released: dict[int, set[int]] = {}
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        self._memories = sorted(
            (_Memory(storage) for storage in storages.values() if storage.nbytes()),
            key=lambda memory: memory.start,
        )
        self._starts = np.array([memory.start for memory in self._memories], np.uint64)

    def enter(self, program: object) -> None:
        """Begin a program."""
        self._program = program
        self._acquired = set()
        self.barrier()
        self._begin_segment()

    def barrier(self) -> None:
        """All threads of the program have come here."""
        self._interval += 1
        self._has_stored = False

    def load(self, pointers: Any, mask: Any, size: int) -> None:
        """Check the bytes that a load reads."""
        for memory, at, _ in self._located("load", pointers, mask, size):
            stored, loaded = memory.stored[at], memory.loaded[at]
            self._check_order("loads what another program stored", stored)
            self._check_order("loads what another program changes by an atomic", memory.atomic[at])
            if self._has_stored and np.any(memory.interval[at] == self._interval):
                self._fail("loads what another of its threads may have stored; no barrier between")
            is_first = (loaded == _NOBODY) | (loaded == self._segment)
            memory.loaded[at] = np.where(is_first, self._segment, _MANY)

    def store(self, pointers: Any, mask: Any, size: int, values: Any) -> None:
        """Check the bytes that a store changes: to store what is there already harms nobody."""
        values = np.ascontiguousarray(
            np.broadcast_to(values, np.broadcast_shapes(np.shape(pointers), np.shape(values)))
        )
        for memory, at, lanes in self._located("store", pointers, mask, size):
            new = values.reshape(-1)[lanes].view(np.uint8)
            self._check_lanes(at, new)
            changed = at[memory.content[at] != new]
            self._check_order("stores where another program stored", memory.stored[changed])
            self._check_order("stores where another program has an atomic", memory.atomic[changed])
            self._check_order("stores what another program loads", memory.loaded[changed])
            memory.stored[at] = self._segment
            memory.interval[at] = self._interval
            self._has_stored = True

    def change(self, pointers: Any, mask: Any, size: int, semantic: str) -> None:
        """Check the bytes of an atomic, and note what it orders."""
        if "rel" in semantic and self._has_stored:
            self._fail(
                "releases what others of its threads may not have stored; no barrier between"
            )
        addresses = set[int]()
        for memory, at, _ in self._located("atomic", pointers, mask, size):
            self._check_order("has an atomic where another program stored", memory.stored[at])
            self._check_order("has an atomic on what another program loads", memory.loaded[at])
            memory.atomic[at] = self._segment
            addresses.update((memory.start + at[::size]).tolist())
        for address in addresses:
            released = self._released.setdefault(address, set())
            if "acq" in semantic:
                self._acquired |= released
            if "rel" in semantic:
                released |= self._acquired
        self._begin_segment()

    def _begin_segment(self) -> None:
        self._segment += 1
        self._acquired.add(self._segment)

    def _located(
        self, what: str, pointers: Any, mask: Any, size: int
    ) -> Iterator[tuple[_Memory, np.ndarray, np.ndarray]]:
        """Yield each memory that is touched, at which bytes, and by which lanes of the tensor."""
        pointers, mask = np.broadcast_arrays(pointers, mask)
        lanes = np.flatnonzero(mask)
        addresses = pointers.reshape(-1)[lanes].astype(np.uint64)
        if np.any(addresses % np.uint64(size)):
            self._fail(f"{what} of {size} bytes at an address that is not a multiple of it")
        owners = np.searchsorted(self._starts, addresses, side="right").astype(np.int64) - 1
        is_one = owners.size > 0 and np.all(owners == owners[0])  # mostly, and quickly seen
        for owner in owners[:1].tolist() if is_one else np.unique(owners).tolist():
            memory = self._memories[owner]
            of_owner = slice(None) if is_one else owners == owner
            offsets = (addresses[of_owner] - np.uint64(memory.start)).astype(np.int64)
            if owner < 0 or offsets.max() + size > memory.num_bytes:
                self._fail(
                    f"{what} of {size} bytes outside all tensors; the one before it has "
                    f"{memory.num_bytes} bytes, offsets are {offsets.min()} to {offsets.max()}"
                )
            if memory.is_followed:
                at = (offsets[:, None] + np.arange(size)).reshape(-1)
                yield memory, at, lanes[of_owner]

    def _check_order(self, what: str, segments: np.ndarray) -> None:
        if not segments.any():  # nobody: quicker than to sort them
            return
        for segment in np.unique(segments).tolist():
            if segment == _MANY or (segment != _NOBODY and segment not in self._acquired):
                self._fail(f"{what}, in no order")

    def _check_lanes(self, at: np.ndarray, new: np.ndarray) -> None:
        if np.all(at[1:] > at[:-1]):
            return  # of different addresses
        _, first, inverse = np.unique(at, return_index=True, return_inverse=True)
        if first.size < at.size and np.any(new[first][inverse] != new):
            self._fail("stores different values to one address")

    def _fail(self, what: str) -> None:
        raise MemoryFault(f"{self._kernel}, program {self._program}: {what}")


def _tensors_of(values: list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, tuple):
            yield from _tensors_of(list(value))
        elif isinstance(value, torch.Tensor):
            yield value
        elif hasattr(value, "base"):
            yield value.base


@contextmanager
def guarded_launches() -> Iterator[None]:
    """Look at every launch of the interpreter while the context lasts."""
    guard: LaunchGuard
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    to_host, set_program = executor._init_args_hst, builder.set_grid_idx
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def begin(self: Any, args: Any, kwargs: Any) -> Any:
        nonlocal guard
        on_host = to_host(self, args, kwargs)
        found = _tensors_of([*on_host[0], *on_host[1].values()])
        guard = LaunchGuard(self.fn.__name__, list(found))
        return on_host

    def enter(self: Any, *program: int) -> None:
        set_program(self, *program)
        guard.enter(program)

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        guard.load(pointers.data, mask.data, _size(pointers))
        return load(self, pointers, mask, *rest, **options)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        guard.store(pointers.data, mask.data, _size(pointers), value.data)
        return store(self, pointers, value, mask, *rest)

    def checked_rmw(
        self: Any, op: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        guard.change(pointers.data, mask.data, _size(pointers), _semantic(sem))
        return rmw(self, op, pointers, value, mask, sem, scope)

    def checked_cas(self: Any, pointers: Any, old: Any, new: Any, sem: Any, scope: Any) -> Any:
        guard.change(pointers.data, True, _size(pointers), _semantic(sem))
        return cas(self, pointers, old, new, sem, scope)

    with (
        patch.object(executor, "_init_args_hst", begin),
        patch.multiple(
            builder,
            set_grid_idx=enter,
            create_masked_load=checked_load,
            create_masked_store=checked_store,
            create_atomic_rmw=checked_rmw,
            create_atomic_cas=checked_cas,
            create_barrier=lambda self: guard.barrier(),
        ),
    ):
        yield


def _size(pointers: Any) -> int:
    return max(1, pointers.get_element_ty().primitive_bitwidth // 8)


def _semantic(semantic: Any) -> str:
    """Return one of relaxed, acquire, release, acquire_release."""
    return str(semantic).rsplit(".", maxsplit=1)[-1].lower()
