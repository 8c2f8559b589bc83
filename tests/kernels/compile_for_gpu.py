"""Compile every Triton kernel for GPUs this machine need not have, as its launcher launches it.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel. Launches are
replaced by compilations, so tile shapes, warps and specialised arguments are the launchers' own.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pagoda.kernels import plan_attention
from pagoda.kernels.score_rule import ScoreRule
from pagoda.kernels.triton_ops import attention_decode, attention_prefill
from pagoda.kernels.triton_ops.kv_write import write_kv
from pagoda.kernels.triton_ops.rms_norm import add_rms_norm, rms_norm
from pagoda.kernels.triton_ops.rope import apply_rope
from pagoda.kernels.triton_ops.silu_mul import silu_mul

CAPABILITIES = (80, 90)
POINTER_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
ALIGNED = [["tt.divisibility", 16]]


def source_of(kernel, args, kwargs) -> tuple[ASTSource, dict[str, int]]:
    """What Triton would compile for this launch, and its compile options."""
    bound = dict(zip(kernel.arg_names, args, strict=False))
    bound |= {name: value for name, value in kwargs.items() if name in kernel.arg_names}
    options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTER_TYPES[value.dtype]
            attributes[(index,)] = ALIGNED
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0:
                attributes[(index,)] = ALIGNED
    return ASTSource(kernel, signature, constants, attributes), options


def resources_of(cubin: bytes) -> dict[str, int]:
    """Registers, stack and local memory (spills) per thread, as cuobjdump reports them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)
    return {name: int(value) for name, value in found}


@contextmanager
def compiling(case: str) -> Iterator[None]:
    """Compile and report instead of launching."""
    jit_class = triton.runtime.jit.JITFunction
    launch = jit_class.run

    def report(kernel, *args, grid, warmup, **kwargs):
        source, options = source_of(kernel, args, kwargs)
        for capability in CAPABILITIES:
            target = GPUTarget("cuda", capability, 32)
            compiled = triton.compile(source, target=target, options=options)
            facts = {
                "kernel": kernel.__name__,
                "case": case,
                "capability": capability,
                "shared": compiled.metadata.shared,
                "copies_async": "cp.async" in compiled.asm["ptx"],
                **resources_of(compiled.asm["cubin"]),
            }
            print(json.dumps(facts))

    jit_class.run = report
    try:
        yield
    finally:
        jit_class.run = launch


def compile_attention(head_dim: int, dtype: torch.dtype, rule: ScoreRule) -> None:
    """Both attention kernels and the merge, on a batch of one decode and one prefill."""
    batch = plan_attention(
        seqlens_q=[1, 127],
        context_lens=[4096, 127],
        block_tables=[[0] * 256, [0] * 8],
        block_size=16,
        device=torch.device("cpu"),
    )
    q = torch.zeros(128, 32, head_dim, dtype=dtype)
    cache = torch.zeros(1, 16, 8, head_dim, dtype=dtype)
    with compiling(f"{head_dim} {dtype} {rule.window} {rule.soft_cap}"):
        attention_decode.decode(q, cache, cache, batch, rule, q, num_splits=4)
        attention_prefill.prefill(q, cache, cache, batch, rule, q)


def compile_elementwise() -> None:
    """Every other kernel, in bf16."""
    x = torch.zeros(16, 4096, dtype=torch.bfloat16)
    q, k = torch.zeros(16, 32, 128).bfloat16(), torch.zeros(16, 8, 128).bfloat16()
    cache = torch.zeros(2, 16, 8, 128).bfloat16()
    index = torch.zeros(16, dtype=torch.int64)
    with compiling("bf16"):
        rms_norm(x, x[0], 1e-5, None)
        rms_norm(q, q[0, 0], 1e-5, None)
        add_rms_norm(x, x, x[0], 1e-5)
        apply_rope(q, k, index, torch.zeros(64, 128))
        silu_mul(x)
        write_kv(k, k, cache, cache, index)


if __name__ == "__main__":
    compile_elementwise()
    for head_dim in (128, 256):
        compile_attention(head_dim, torch.bfloat16, ScoreRule(0.1))
    compile_attention(128, torch.float32, ScoreRule(0.1))
    compile_attention(80, torch.float16, ScoreRule(0.1, window=1024, soft_cap=30.0))
