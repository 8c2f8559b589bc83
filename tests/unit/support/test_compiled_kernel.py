import os
import subprocess
import sys

import pytest
from support.compile_scripts import resource_table, spilling, too_large

FACTS = {
    "kernel": "a_kernel",
    "case": "bf16",
    "capability": 90,
    "num_warps": 4,
    "REG": 64,
    "STACK": 0,
    "LOCAL": 0,
    "shared": 1024,
}
SCRIPT = """
import json
import torch, triton, triton.language as tl
from support.compiled_kernel import compile_launches
from pagoda.kernels.triton_ops import launch

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


@pytest.mark.slow
def test_launches_become_reports(tmp_path):
    script = tmp_path / "compile.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3  # the second case for the main capability alone
    assert all('"kernel": "add_kernel", "case": "a case"' in line for line in lines)
    assert '"num_warps": 1' in lines[0]
    assert '"num_warps": 2' in lines[1]


def test_too_much_shared_memory_and_spills_are_seen():
    good, large = FACTS, FACTS | {"capability": 80, "shared": 200_000}
    spilled = FACTS | {"STACK": 64}
    assert too_large([good, large, spilled]) == [large]
    assert spilling([good, large, spilled]) == [spilled]


def test_table_is_sorted_and_names_its_columns():
    table = resource_table([FACTS | {"kernel": "b_kernel"}, FACTS])
    assert [row[0] for row in table["rows"]] == ["a_kernel", "b_kernel"]
    assert dict(zip(table["columns"], table["rows"][0], strict=True))["registers"] == 64
