"""What every launcher needs: the device to launch on and facts that shape a grid."""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton

IS_INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""True if kernels run in Triton's interpreter, where products of bf16 must be widened first."""


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Make the tensor's GPU current, which Triton launches on; nothing to do for CPU tensors."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 for the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def capability(device: torch.device) -> int:
    """Compute capability of a GPU such as 80 or 90; 80 for the interpreter."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def has_little_shared_memory(device: torch.device) -> bool:
    """Whether a program may use 99 KiB of shared memory and not 163 or more."""
    return capability(device) in (86, 89, 120, 121)


def next_power_of_2(value: int) -> int:
    """Smallest power of two >= `value`, which must be >= 1."""
    return 1 << (value - 1).bit_length()
