"""What a device's memory is used for, as the driver and torch's allocator report it.

Knows one device. Knows nothing of models or of what may be used.
"""

import gc
from typing import Protocol

import torch


class DeviceMemory(Protocol):
    """One device, as this process sees it. All numbers are bytes.

    Attributes:
        name: for people.
    """

    name: str

    def total_and_free(self) -> tuple[int, int]:
        """Return the whole memory and what nobody has taken of it."""
        ...

    def reserved(self) -> int:
        """Return what torch has taken in this process."""
        ...

    def peak(self) -> int:
        """Return the most that torch had taken since `trim`."""
        ...

    def trim(self) -> None:
        """Wait for the device, give back what torch keeps for later, and forget the peak."""
        ...


class CudaMemory:
    """A CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = f"{torch.cuda.get_device_name(device)} ({device})"

    def total_and_free(self) -> tuple[int, int]:
        """See `DeviceMemory.total_and_free`."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total, free

    def reserved(self) -> int:
        """See `DeviceMemory.reserved`."""
        return torch.cuda.memory_reserved(self._device)

    def peak(self) -> int:
        """See `DeviceMemory.peak`."""
        return torch.cuda.max_memory_reserved(self._device)

    def trim(self) -> None:
        """See `DeviceMemory.trim`."""
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
