"""Every kernel compiles for GPUs that need not be present, and fits them."""

import inspect
import itertools
import json
import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pagoda.kernels.triton_ops as triton_ops

SHARED_BYTES = {80: 166912, 90: 232448}
"""Shared memory one block may use on an A100 and on an H100."""

SPILLED_BYTES = 16
"""Stack per thread that is tolerated: a few addresses, no tile."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).with_name("compile_for_gpu.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_leaves_no_kernel_out(compiled):
    defined = set()
    for module in pkgutil.iter_modules(triton_ops.__path__):
        source = inspect.getsource(import_module(f"{triton_ops.__name__}.{module.name}"))
        lines = source.splitlines()
        defined |= {
            line.removeprefix("def ").partition("(")[0]
            for before, line in itertools.pairwise(lines)
            if before == "@triton.jit" and line.partition("(")[0].endswith("_kernel")
        }
    assert defined
    assert {(facts["kernel"], facts["capability"]) for facts in compiled} == {
        (name, capability) for name in defined for capability in SHARED_BYTES
    }


def test_fits_shared_memory(compiled):
    too_large = [facts for facts in compiled if facts["shared"] > SHARED_BYTES[facts["capability"]]]
    assert not too_large


def test_spills_next_to_no_registers(compiled):
    spilling = [facts for facts in compiled if facts["STACK"] + facts["LOCAL"] > SPILLED_BYTES]
    assert not spilling


def test_attention_overlaps_copies_with_arithmetic(compiled):
    waiting = [
        facts
        for facts in compiled
        if facts["kernel"] in ("decode_kernel", "prefill_kernel") and not facts["copies_async"]
    ]
    assert not waiting
