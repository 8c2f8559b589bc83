"""Kernels bound by memory move 16 bytes per thread and access, and spill nothing."""

from pathlib import Path

import pytest
from support.compile_scripts import compiled_by

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("compile_blocks_for_gpu.py")
WIDE_LOADS = {
    "copy_blocks_kernel",
    "copy_digest_kernel",
    "digest_kernel",
    "rms_norm_kernel",
    "rms_norm_quantised_kernel",
    "silu_mul_kernel",
    "silu_mul_quantised_kernel",
    "rope_kernel",
}
WIDE_STORES = WIDE_LOADS - {"digest_kernel"}
MAX_REGISTERS = {"copy_digest_kernel": 128, "digest_kernel": 128, "copy_blocks_kernel": 64}
"""So that four programs of 128 threads, or eight, share a multiprocessor."""


@pytest.fixture(scope="module")
def compiled():
    return [facts for facts in compiled_by(SCRIPT) if facts["case"] != "odd bytes"]


@pytest.mark.parametrize(("direction", "kernels"), [("ld", WIDE_LOADS), ("st", WIDE_STORES)])
def test_moves_16_bytes_at_a_time(compiled, direction, kernels):
    hot = [facts for facts in compiled if facts["kernel"] in kernels]
    if direction == "st":
        hot = [facts for facts in hot if facts["case"] != "in place"]  # stores nothing but sums
    assert {facts["kernel"] for facts in hot} == kernels
    assert not [facts for facts in hot if facts[f"{direction}_bits"] < 128]


def test_spills_nothing(compiled):
    assert not [facts for facts in compiled if facts["STACK"] + facts["LOCAL"]]


def test_leaves_registers_for_other_programs(compiled):
    assert not [
        facts
        for facts in compiled
        if facts["REG"] > MAX_REGISTERS.get(facts["kernel"], 65536 // (32 * facts["num_warps"]))
    ]
