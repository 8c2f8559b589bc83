import json
import os
import subprocess
import sys

import pytest
from support.compile_scripts import bound_by_issue, resource_table, spilling, too_large
from support.compiled_kernel import EVERY_GPU_VARIABLE, asked_capabilities

FACTS = {
    "kernel": "a_kernel",
    "case": "bf16",
    "capability": 90,
    "num_warps": 4,
    "REG": 64,
    "STACK": 0,
    "LOCAL": 0,
    "shared": 1024,
    "copied_per_cycle": 0.0,
}
SCRIPT = """
import json
import torch, triton, triton.language as tl
from support.compiled_kernel import compile_launches
from pagoda_kernels.triton import launch

@triton.jit
def add_kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * scale, mask=offs < n)

x = torch.zeros(64)

def launches():
    num_warps = 2 if launch.capability(x.device) == 90 else 1
    add_kernel[(1,)](x, x, 64, 2.0, BLOCK=64, num_warps=num_warps)
    add_kernel[(1,)](x, x, 63, 2.0, BLOCK=64)

compile_launches("a case", launches, lambda facts: print(json.dumps(facts)), (80, 90))
"""

LOOP_SCRIPT = """
import json
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from support.compiled_kernel import source_of
from support.kernel_loops import innermost_loops

@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, k, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, k, BLOCK):
        a = tl.load(a_ptr + offs[:, None] * k + start + offs[None, :])
        b = tl.load(b_ptr + offs[:, None] * k + start + offs[None, :])
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(out_ptr + offs[:, None] * BLOCK + offs[None, :], acc)

x, out = torch.zeros(64, 1024).half(), torch.zeros(64, 64)
options = {"BLOCK": 64, "num_warps": 4, "num_stages": 3}
source, options = source_of(dot_kernel, (x, x, out, 1024), options, 90)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
loops = innermost_loops(compiled.asm["cubin"])
print(json.dumps([(loop.instructions, loop.copied_bytes, loop.bytes_per_cycle) for loop in loops]))
"""


def run_script(tmp_path, text, **variables):
    """What a script without the interpreter prints, by lines."""
    script = tmp_path / "compile.py"
    script.write_text(text, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= variables | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_launches_become_reports(tmp_path):
    lines = run_script(tmp_path, SCRIPT, **{EVERY_GPU_VARIABLE: "1"})
    assert len(lines) == 3  # the second case for the main capability alone
    assert all('"kernel": "add_kernel", "case": "a case"' in line for line in lines)
    assert '"num_warps": 1' in lines[0]
    assert '"num_warps": 2' in lines[1]
    (few,) = run_script(tmp_path, SCRIPT)
    assert '"capability": 90' in few


def test_every_gpu_is_asked_for_by_a_variable_alone(monkeypatch):
    monkeypatch.delenv(EVERY_GPU_VARIABLE, raising=False)
    assert asked_capabilities() == (90,)
    monkeypatch.setenv(EVERY_GPU_VARIABLE, "1")
    assert asked_capabilities() == (80, 89, 90, 100)


@pytest.mark.slow
def test_a_loop_s_copies_are_counted(tmp_path):
    (line,) = run_script(tmp_path, LOOP_SCRIPT)
    (loop,) = [loop for loop in json.loads(line) if loop[1]]
    instructions, copied_bytes, bytes_per_cycle = loop
    assert copied_bytes == 2 * 64 * 64 * 2 // 4  # two tiles of fp16, shared out to four warps
    assert 30 < instructions < 300
    assert bytes_per_cycle == 4 * copied_bytes / instructions


def test_a_loop_that_issues_too_much_is_seen():
    fast = FACTS | {"kernel": "decode_kernel", "copied_per_cycle": 30.0}
    slow, exact = fast | {"copied_per_cycle": 18.4}, fast | {"case": "float32"}
    other = FACTS | {"copied_per_cycle": 1.0}
    assert bound_by_issue([fast, slow, exact | {"copied_per_cycle": 9.0}, other]) == [slow]


def test_too_much_shared_memory_and_spills_are_seen():
    good, large = FACTS, FACTS | {"capability": 80, "shared": 200_000}
    spilled = FACTS | {"STACK": 64}
    assert too_large([good, large, spilled]) == [large]
    assert spilling([good, large, spilled]) == [spilled]


def test_table_is_sorted_and_names_its_columns():
    table = resource_table([FACTS | {"kernel": "b_kernel"}, FACTS])
    assert [row[0] for row in table["rows"]] == ["a_kernel", "b_kernel"]
    assert dict(zip(table["columns"], table["rows"][0], strict=True))["registers"] == 64
