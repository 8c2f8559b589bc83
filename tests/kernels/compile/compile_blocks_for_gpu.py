"""Compile the block, norm, gate and RoPE kernels for GPUs that need not be present.

Run as a script without TRITON_INTERPRET; prints one JSON object per compiled kernel, with the width
of its widest global load and store.
"""

import json
import re
from collections.abc import Callable

import torch
import triton
from support.compiled_kernel import Facts, compile_launches

from pagoda_kernels.gate.triton.silu_mul import silu_mul
from pagoda_kernels.gate.triton.silu_mul_quantised import silu_mul_quantised
from pagoda_kernels.kv.triton import block_copy, block_digest
from pagoda_kernels.norm.triton.rms_norm import add_rms_norm, rms_norm
from pagoda_kernels.norm.triton.rms_norm_quantised import add_rms_norm_quantised
from pagoda_kernels.rope.triton import apply_rope

BF16 = torch.bfloat16
compile_kernel = triton.compile
compiled_ptx: list[str] = []


def compile_and_keep(*args, **kwargs):
    """`triton.compile` that leaves its PTX in `compiled_ptx`."""
    compiled = compile_kernel(*args, **kwargs)
    compiled_ptx.append(compiled.asm["ptx"])
    return compiled


def report(case: str, launches: Callable[[], object]) -> None:
    """Print what the kernels that are launched would use."""

    def print_facts(facts: Facts) -> None:
        widths = {f"{kind}_bits": widest(compiled_ptx[-1], kind) for kind in ("ld", "st")}
        print(json.dumps(facts | widths))

    compile_launches(case, launches, print_facts)


def widest(ptx: str, kind: str) -> int:
    """Bits per thread of the widest global load or store."""
    found = re.findall(rf"{kind}\.global\S*?(?:\.v(\d))?\.[bfsu](\d+)\s", ptx)
    return max((int(count or 1) * int(bits) for count, bits in found), default=0)


def compile_blocks() -> None:
    """Gather, scatter and digests of 32 layers, 8 heads of 128, blocks of 16; and of odd bytes."""
    pool = torch.zeros(2, 32, 2, 16, 8, 128, dtype=BF16)
    ids = torch.zeros(1, dtype=torch.int64)
    blocks = torch.zeros(1, 2, 32, 16, 8, 128, dtype=BF16)
    skipped = torch.zeros(1, dtype=torch.bool)
    report("gather", lambda: block_copy.gather_blocks(pool, ids, blocks))
    report("scatter", lambda: block_copy.scatter_blocks(pool, ids, blocks, skipped))
    report("gather", lambda: block_copy.gather_blocks_digest(pool, ids, blocks))
    report("in place", lambda: block_copy.digest_pool(pool, ids))
    report("pool to pool", lambda: block_copy.copy_blocks(pool, ids, pool, ids))
    rows = blocks.view(torch.uint8).view(1, -1)
    report("2 MiB", lambda: block_digest.digest_blocks(rows))
    odd, odd_blocks = pool[..., :7, :3, :5].char(), blocks[..., :7, :3, :5].char()
    report(
        "odd bytes",
        lambda: block_copy.gather_blocks(odd.contiguous(), ids, odd_blocks.contiguous()),
    )


def compile_norms() -> None:
    """Norms and gates up to the widest, also to fp8."""
    for width in (4096, 5120, 8192, 16384):
        x = torch.zeros(16, width, dtype=BF16)
        report(f"{width}", lambda x=x: rms_norm(x, x[0], 1e-5, None))
        report(f"add {width}", lambda x=x: add_rms_norm(x, x, x[0], 1e-5))
        report(f"unit offset {width}", lambda x=x: add_rms_norm(x, x, x[0], 1e-5, True))
        report(f"{width}", lambda x=x: silu_mul_quantised(x))
        report(f"{width}", lambda x=x: add_rms_norm_quantised(x, x, x[0], 1e-5))
    wide = torch.zeros(16, 2 * 28672, dtype=BF16)
    report("28672", lambda: silu_mul(wide))
    report("57344", lambda: silu_mul_quantised(wide))


def compile_rope() -> None:
    """Every form of the rotation."""
    q, k = torch.zeros(16, 32, 128, dtype=BF16), torch.zeros(16, 8, 128, dtype=BF16)
    at, table = torch.zeros(16, dtype=torch.int64), torch.zeros(64, 128)
    report("half", lambda: apply_rope(q, k, at, table))
    report("pairs", lambda: apply_rope(q, k, at, table, interleaved=True))


if __name__ == "__main__":
    triton.compile = compile_and_keep
    compile_blocks()
    compile_norms()
    compile_rope()
