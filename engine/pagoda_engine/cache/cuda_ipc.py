"""Device memory of one process, mapped by another of the same host, through the CUDA driver.

By ctypes, because torch offers handles only together with counters in shared memory that a killed
process leaves wrong. Knows nothing of what the bytes mean, or of who may still need them.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch

HANDLE_BYTES = 64
_LAZY_ENABLE_PEER_ACCESS = 1


class CudaIpcError(Exception):
    """This memory cannot be exported, or not be mapped here."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaDriver:
    """The few driver calls that torch does not offer, on one device's primary context.

    Args:
        device_index: as torch counts; the driver obeys CUDA_VISIBLE_DEVICES alike.
        library: what to load.

    Raises:
        CudaIpcError: there is no driver, or no such device.
    """

    def __init__(self, device_index: int, library: str = "libcuda.so.1") -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise CudaIpcError(f"no CUDA driver: {error}") from error
        device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_index))
        # Torch holds the context for as long as the process lives, so it is never released here.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def export(self, address: int) -> tuple[bytes, int, int]:
        """Return (handle, base address, bytes) of the allocation that `address` lies in.

        Raises:
            CudaIpcError: it was not allocated in a way that can be exported.
        """
        handle = _Handle()
        with self._current():
            base, num_bytes = self._range_of(address)
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle), base, num_bytes

    def open(self, handle: bytes) -> tuple[int, int]:
        """Map another process's allocation: (base address, bytes).

        Raises:
            CudaIpcError: it is not of this host, its process has ended, or its GPU is out of reach.
        """
        if len(handle) != HANDLE_BYTES:
            raise CudaIpcError(f"a handle has {HANDLE_BYTES} bytes, got {len(handle)}")
        address = ctypes.c_uint64()
        with self._current():
            self._call(
                "cuIpcOpenMemHandle_v2",
                ctypes.byref(address),
                _Handle.from_buffer_copy(handle),
                ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS),
            )
            try:
                return self._range_of(address.value)
            except CudaIpcError:
                self._call("cuIpcCloseMemHandle", address)
                raise

    def close(self, base: int) -> None:
        """Unmap what `open` returned; no work on it may be under way."""
        with self._current():
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(base))

    def _range_of(self, address: int) -> tuple[int, int]:
        base, num_bytes = ctypes.c_uint64(), ctypes.c_size_t()
        self._call(
            "cuMemGetAddressRange_v2",
            ctypes.byref(base),
            ctypes.byref(num_bytes),
            ctypes.c_uint64(address),
        )
        return base.value, num_bytes.value

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Threads have a context of their own, or none: make it this one for a while."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(result), ctypes.byref(text))
            message = (text.value or b"unknown error").decode()
            raise CudaIpcError(f"{name}: {message} (CUDA error {result})")


class CudaIpcMemory:
    """Memory of another process; unmapped when nobody holds this object or a tensor of it."""

    def __init__(self, driver: CudaDriver, handle: bytes) -> None:
        self._driver = driver
        self._base, self.num_bytes = driver.open(handle)

    def tensor(self, offset: int, num_bytes: int, device: torch.device) -> torch.Tensor:
        """Return uint8 ``[num_bytes]`` on `device`, whichever GPU the memory is of.

        It keeps the mapping. Copies of it must be done before it is let go of.

        Raises:
            CudaIpcError: torch does not take memory of that GPU, or by a copy only.
        """
        address = self._base + offset
        try:
            tensor = torch.as_tensor(_Range(self, address, num_bytes), device=device)
        except RuntimeError as error:
            raise CudaIpcError(f"torch: {error}") from error
        if tensor.data_ptr() != address:
            raise CudaIpcError(f"torch copies memory of that GPU for {device}")
        return tensor

    def __del__(self) -> None:
        if hasattr(self, "num_bytes"):
            with contextlib.suppress(CudaIpcError):  # its context has ended already
                self._driver.close(self._base)


class _Range:
    """What torch takes for foreign device memory; the tensor holds it, and it the mapping."""

    def __init__(self, memory: CudaIpcMemory, address: int, num_bytes: int) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }
