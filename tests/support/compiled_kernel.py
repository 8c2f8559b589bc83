"""Compiles Triton kernels for GPUs this machine need not have, as their launchers launch them.

Launches are replaced by compilations, so tile shapes, warps and specialised arguments are the
launchers' own. Only works in a process without TRITON_INTERPRET. Knows nothing of single kernels.
"""

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

CAPABILITIES = (80, 90, 100)
"""A100, H100 and H200, B200."""

MAIN_CAPABILITY = 90
"""Compiled for every case; the others for each kernel's first case, unless everything is asked."""

EVERYTHING_VARIABLE = "PAGODA_COMPILE_EVERYTHING"

SHARED_BYTES = {80: 166912, 89: 101376, 90: 232448, 100: 232448}
"""Shared memory one block may use; Triton compiles kernels that want more."""

POINTER_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.uint64: "u64",
}
ALIGNED = [["tt.divisibility", 16]]
ALIGNMENT_BYTES = 16
MAX_INT32 = 2**31 - 1

Facts = dict[str, Any]


def source_of(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[ASTSource, dict[str, Any]]:
    """What Triton would compile for this launch, and its compile options."""
    bound = dict(zip(kernel.arg_names, args, strict=False))
    bound |= {name: value for name, value in kwargs.items() if name in kernel.arg_names}
    options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = bound.get(parameter.name, parameter.default)
        is_one = isinstance(value, int) and not isinstance(value, bool) and value == 1
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
            continue
        signature[parameter.name], is_aligned = argument_type(value)
        if is_aligned:
            attributes[(index,)] = ALIGNED
    return ASTSource(kernel, signature, constants, attributes), options


def argument_type(value: Any) -> tuple[str, bool]:
    """(Triton's name of the argument's type, whether it is a multiple of 16)."""
    if isinstance(value, torch.Tensor):
        # An allocation is aligned; what a view adds to its address may not be.
        offset = value.storage_offset() * value.element_size()
        return f"*{POINTER_TYPES[value.dtype]}", offset % ALIGNMENT_BYTES == 0
    if isinstance(value, TensorDescriptor):
        shape = ",".join(map(str, value.block_shape))
        return f"tensordesc<{POINTER_TYPES[value.base.dtype]}[{shape}]>", False
    if isinstance(value, bool):
        return "i1", False
    if isinstance(value, float):
        return "fp32", False
    return "i32" if abs(value) <= MAX_INT32 else "i64", value % ALIGNMENT_BYTES == 0


def resources_of(cubin: bytes) -> dict[str, int]:
    """Registers, stack and local memory (spills) per thread, as cuobjdump reports them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [_cuobjdump(), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)
    assert found, f"cuobjdump said nothing of registers: {usage}"
    return {name: int(value) for name, value in found}


def compile_launch(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], capability: int, **labels: Any
) -> Facts:
    """Compile one launch for one compute capability; returns what it would use."""
    source, options = source_of(kernel, args, kwargs)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=options)
    return {
        "kernel": kernel.__name__,
        **labels,
        "capability": capability,
        "shared": compiled.metadata.shared,
        "num_warps": compiled.metadata.num_warps,
        "copies_async": "cp.async" in compiled.asm["ptx"],
        "copies_bulk": "cp.async.bulk.tensor" in compiled.asm["ptx"],
        "warp_group_mma": "wgmma.mma_async" in compiled.asm["ptx"],
        **resources_of(compiled.asm["cubin"]),
    }


@contextmanager
def compiling(
    case: str, capabilities: Sequence[int], report: Callable[[Facts], object]
) -> Iterator[None]:
    """Compile for every capability and report instead of launching."""
    jit_class = triton.runtime.jit.JITFunction
    launch = jit_class.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        for capability in capabilities:
            if _is_settled(kernel, args, capability):
                continue
            report(compile_launch(kernel, args, kwargs, capability, case=case))

    jit_class.run = run
    try:
        yield
    finally:
        jit_class.run = launch


_compiled: set[tuple[str, bool, int]] = set()


def _is_settled(kernel: Any, args: Sequence[Any], capability: int) -> bool:
    """Whether a further case would tell nothing that this run wants; notes that it was asked."""
    is_described = any(isinstance(value, TensorDescriptor) for value in args)
    path = kernel.__name__, is_described, capability
    before = path in _compiled
    _compiled.add(path)
    return before and capability != MAIN_CAPABILITY and not os.environ.get(EVERYTHING_VARIABLE)


@functools.cache
def _cuobjdump() -> str:
    return str(triton.knobs.nvidia.cuobjdump.path)
