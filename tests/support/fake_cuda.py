"""A CUDA device that computes nothing: shapes and launches without a GPU, and no values at all.

Tensors are torch's fake tensors, so whatever asks for a value fails, as it would fail or wait on a
GPU that is capturing a graph; so does an operator that torch cannot even name without CUDA, such as
``nonzero``. Kernel launches are logged with the key under which Triton looks for
the compiled kernel. Only works in a process without TRITON_INTERPRET.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support.compiled_kernel import specialise

DEVICE = torch.device("cuda", 0)
CAPABILITY = 90

Key = tuple[str, str]
"""Kernel and everything its compiled form depends on."""


Launch = tuple[Any, list[Any], dict[str, Any]]
"""Kernel, arguments and options, as `compiled_kernel.compile_launch` takes them."""


@dataclass
class LaunchLog:
    """Launches in order; `grids` in step with `keys`; `first` of each key, never cleared."""

    keys: list[Key] = field(default_factory=list)
    grids: list[tuple[int, ...]] = field(default_factory=list)
    first: dict[Key, Launch] = field(default_factory=dict)

    def clear(self) -> None:
        self.keys.clear()
        self.grids.clear()


class _Pointer:
    """What Triton asks of a tensor; an allocation is aligned, a view of it may not be."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = 256 + tensor.storage_offset() * tensor.element_size()

    def data_ptr(self) -> int:
        return self._address


class _Unguarded(TorchFunctionMode):
    """Indexes and copies without a device guard, which torch without CUDA does not have."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            tensor, index = args
            places = _places(tensor, index)
            return torch.ops.aten.index.Tensor(tensor, places) if places else _part(tensor, index)
        if func is torch.Tensor.__setitem__:
            tensor, index, value = args
            if not isinstance(value, torch.Tensor):
                value = tensor.new_full((), value)
            places = _places(tensor, index)
            if places:
                return tensor.index_put_(places, value)
            return torch.ops.aten.copy_(_part(tensor, index), value)
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _places(tensor: torch.Tensor, index: Any) -> list[torch.Tensor]:
    """The index as tensors if any of it is one, else nothing."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(part, torch.Tensor) for part in parts):
        return []
    return [
        part if isinstance(part, torch.Tensor) else tensor.new_full((), part, dtype=torch.int64)
        for part in parts
    ]


def _part(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """A view, of numbers, slices, None and an ellipsis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        given = sum(part is not None for part in parts) - 1
        parts[at : at + 1] = [slice(None)] * (tensor.dim() - given)
    dim = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, int):
            tensor = tensor.select(dim, part)
            continue
        elif part != slice(None):
            tensor = torch.ops.aten.slice(tensor, dim, part.start, part.stop, part.step or 1)
        dim += 1
    return tensor


class NoHostTraffic(TorchDispatchMode):
    """Refuses copies between host and device, which a captured graph would repeat or not see."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        met = _tensors([args, list((kwargs or {}).values()), made])
        devices = {tensor.device.type for tensor in met}
        if len(devices) > 1 or "_pin_memory" in str(func):
            raise AssertionError(f"{func}: host and device meet in a captured forward")
        return made


def _tensors(values: Any) -> list[torch.Tensor]:
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found


@contextmanager
def fake_cuda(*, processors: int = 132, device_name: str = "NVIDIA H200") -> Iterator[LaunchLog]:
    """Make tensors fake and `DEVICE` usable; launches go to the log."""
    log = LaunchLog()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        stand_ins = [_Pointer(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        _, _, specialisation, options = specialise(kernel, stand_ins, kwargs, CAPABILITY)
        log.keys.append((kernel.__name__, f"{specialisation} {sorted(options.items())}"))
        log.first.setdefault(log.keys[-1], (kernel, stand_ins, kwargs))
        log.grids.append(tuple(grid))

    properties = SimpleNamespace(multi_processor_count=processors)
    answers = {
        "get_device_name": lambda _: device_name,
        "get_device_capability": lambda _: divmod(CAPABILITY, 10),
        "get_device_properties": lambda _: properties,
        "device": lambda _: nullcontext(),
        "current_stream": lambda _: SimpleNamespace(cuda_stream=7),
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda _: None,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.object(triton.runtime.jit.JITFunction, "run", run))
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(FakeTensorMode())
        stack.enter_context(_Unguarded())
        yield log


@contextmanager
def captured() -> Iterator[None]:
    """Refuse what a CUDA graph capture refuses, and copies from and to the host."""

    def refuse(*_: object) -> None:
        raise AssertionError("the host waits for the device in a captured forward")

    with (
        patch.object(torch.cuda, "synchronize", refuse),
        patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
        NoHostTraffic(),
    ):
        yield
