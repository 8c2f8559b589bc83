"""Compiles Triton kernels for GPUs this machine need not have, as their launchers launch them.

Launches are replaced by compilations, so tile shapes, warps and specialised arguments are the
launchers' own. Only works in a process without TRITON_INTERPRET. Knows nothing of single kernels.
"""

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.language import target_info
from triton.runtime.jit import create_function_from_signature
from triton.tools.tensor_descriptor import TensorDescriptor

from pagoda_kernels.triton import launch
from support.kernel_loops import innermost_loops

CAPABILITIES = (80, 89, 90, 100)
"""A100, L4 and L40S, H100 and H200, B200."""

MAIN_CAPABILITY = 90
"""Compiled for every case, if every GPU is asked for; else, as the others are, for the first case
of each kernel, or way through it, unless everything is asked."""

EVERYTHING_VARIABLE = "PAGODA_COMPILE_EVERYTHING"
EVERY_GPU_VARIABLE = "PAGODA_COMPILE_FOR_EVERY_GPU"
FEW_CAPABILITIES = (MAIN_CAPABILITY,)
"""Unless every GPU is asked for, as CI does after the tests (`make every-gpu`): to compile takes
half a second of CPU a case."""

STREAMING = {
    "decode_kernel", "mla_decode_kernel", "fp8_matmul_kernel", "int8_matmul_kernel",
    "int4_matmul_kernel", "moe_gate_up_kernel", "moe_down_kernel", "lora_shrink_kernel",
}  # fmt: skip
"""Kernels whose floor is what they read, at decodes: only their loops are disassembled, and for
the main capability, unless everything is asked. That takes as long as to compile them."""

SHARED_BYTES = {80: 166912, 89: 101376, 90: 232448, 100: 232448}
"""Shared memory one block may use; Triton compiles kernels that want more."""

HAND_OVER = re.compile(
    r"bar\.sync(?:(?!st\.global)[\s\S])*?atom\.global\.gpu\.acq_rel"
    r"(?:(?!ld\.global)[\s\S])*?bar\.sync[\s\S]*?ld\.global\.cg"
)
"""A program that leaves its part and the one that takes it up.

All stores are behind a barrier before one thread releases, and all loads, which pass by the first
cache, are behind a barrier after it acquired.
"""

Facts = dict[str, Any]


def asked_capabilities() -> tuple[int, ...]:
    """What this process, and the scripts that it runs, compile for."""
    asks_all = os.environ.get(EVERY_GPU_VARIABLE) or os.environ.get(EVERYTHING_VARIABLE)
    return CAPABILITIES if asks_all else FEW_CAPABILITIES


def specialise(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], capability: int
) -> tuple[Any, dict[str, Any], list[Any], dict[str, Any]]:
    """(backend, arguments by name, what Triton compiles the launch for, options), by Triton itself.

    The third, with the options, is the key under which a launch looks for its compiled kernel.
    """
    backend, bind = _binder(kernel, capability)
    bound, specialisation, options = bind(*args, **kwargs)
    return backend, bound, specialisation, options


def _binder(kernel: Any, capability: int) -> tuple[Any, Callable[..., Any]]:
    """(backend, what binds the arguments of a launch): code that Triton writes for each kernel."""
    key = id(kernel), capability  # its hash would be of its source, which is not settled yet
    if key not in _binders:
        backend = make_backend(GPUTarget("cuda", capability, 32))
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        _binders[key] = kernel, backend, bind
    return _binders[key][1:]


_binders: dict[tuple[int, int], tuple[Any, Any, Callable[..., Any]]] = {}
"""With the kernel, so that no other gets its id."""


def source_of(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], capability: int
) -> tuple[ASTSource, dict[str, Any]]:
    """What Triton would compile for this launch, and its compile options."""
    backend, bound, specialisation, options = specialise(kernel, args, kwargs, capability)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, kwargs, bound, specialisation, options
    )
    return ASTSource(kernel, signature, constants, attributes), parsed.__dict__


@functools.cache
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


def hands_over(ptx: str) -> bool:
    """Whether it has `HAND_OVER`, for which only kernels with its atomic are searched."""
    return "atom.global.gpu.acq_rel" in ptx and bool(HAND_OVER.search(ptx))


def compile_launch(
    kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], capability: int, **labels: Any
) -> Facts:
    """Compile one launch for one compute capability; returns what it would use."""
    source, options = source_of(kernel, args, kwargs, capability)
    target = GPUTarget("cuda", capability, 32)
    # What kernels ask of the target; marked, so that it is not hashed with their source.
    current_target = functools.partial(GPUTarget, "cuda", capability, 32)
    current_target.__triton_builtin__ = True  # type: ignore[attr-defined]
    with patch.object(target_info, "current_target", current_target):
        compiled = triton.compile(source, target=target, options=options)
    copies_async = "cp.async" in compiled.asm["ptx"]
    is_judged = kernel.__name__ in STREAMING and capability == MAIN_CAPABILITY
    is_looked_at = copies_async and (is_judged or os.environ.get(EVERYTHING_VARIABLE))
    loops = innermost_loops(compiled.asm["cubin"]) if is_looked_at else ()
    return {
        "kernel": kernel.__name__,
        **labels,
        "capability": capability,
        "shared": compiled.metadata.shared,
        "num_warps": compiled.metadata.num_warps,
        "copies_async": copies_async,
        "copies_bulk": "cp.async.bulk.tensor" in compiled.asm["ptx"],
        "warp_group_mma": "wgmma.mma_async" in compiled.asm["ptx"],
        "copied_per_cycle": round(max((x.bytes_per_cycle for x in loops), default=0.0), 1),
        "hands_over": hands_over(compiled.asm["ptx"]),
        **resources_of(compiled.asm["cubin"]),
    }


def compile_launches(
    case: str,
    launches: Callable[[], object],
    report: Callable[[Facts], object],
    capabilities: Sequence[int] = CAPABILITIES,
) -> None:
    """Call `launches` once for every capability, whose GPU launchers then believe to have.

    What it launches is compiled and reported instead, for those of them that are asked for.
    """
    for capability in sorted({*capabilities} & {*asked_capabilities()}):

        def run(
            kernel: Any, *args: Any, grid: Any, warmup: bool, capability: int = capability,
            **kwargs: Any,
        ) -> None:  # fmt: skip
            if not _is_settled(kernel, args, capability):
                report(compile_launch(kernel, args, kwargs, capability, case=case))

        with (
            patch.object(triton.runtime.jit.JITFunction, "run", run),
            patch.object(launch, "capability", lambda _, capability=capability: capability),
        ):
            launches()


_compiled: set[tuple[str, bool, int]] = set()


def _is_settled(kernel: Any, args: Sequence[Any], capability: int) -> bool:
    """Whether a further case would tell nothing that this run wants; notes that it was asked."""
    is_described = any(isinstance(value, TensorDescriptor) for value in args)
    path = kernel.__name__, is_described, capability
    before = path in _compiled
    _compiled.add(path)
    wants_all_of = MAIN_CAPABILITY if os.environ.get(EVERY_GPU_VARIABLE) else None
    return before and capability != wants_all_of and not os.environ.get(EVERYTHING_VARIABLE)


@functools.cache
def _cuobjdump() -> str:
    return str(triton.knobs.nvidia.cuobjdump.path)
