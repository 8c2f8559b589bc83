"""A CPU process must not pay for Triton: importing it takes seconds and hundreds of megabytes."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from pagoda_kernels import *

x = torch.ones(2, 4, 64)
batch = plan_attention(
    seqlens_q=[2], context_lens=[2], block_tables=[[0]], block_size=16, device=x.device
)
cache = torch.zeros(1, 16, 4, 64)
write_kv(x, x, cache, cache, batch.slot_mapping)
paged_attention(x, cache, cache, batch, scale=1.0)
apply_rope(x, x, torch.zeros(2).long(), torch.ones(1, 64))
add_rms_norm(x, x, rms_norm(x, x[0, 0], 1e-5)[0, 0], 1e-5)
silu_mul(x[:, 0])
scatter_blocks(cache[None, None].repeat(2, 1, 1, 1, 1, 1), torch.tensor([0]),
               gather_blocks(cache[None, None].repeat(2, 1, 1, 1, 1, 1), torch.tensor([0])))
print([name for name in sys.modules if name.partition(".")[0] == "triton"])
"""


@pytest.mark.slow
def test_cpu_operators_import_no_triton():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
