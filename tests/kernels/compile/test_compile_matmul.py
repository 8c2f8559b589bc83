"""What the matmuls must compile to, beyond what `test_compile` asks of every kernel."""

import pytest
from support.compile_scripts import SCRIPTS, compiled_by

MATMULS = {
    "fp8_matmul_kernel",
    "int8_matmul_kernel",
    "int4_matmul_kernel",
    "moe_gate_up_kernel",
    "moe_down_kernel",
    "lora_shrink_kernel",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def matmuls():
    compiled = compiled_by(SCRIPTS / "compile_matmul_for_gpu.py")
    assert {facts["kernel"] for facts in compiled} >= MATMULS
    return [facts for facts in compiled if facts["kernel"] in MATMULS]


def test_weights_are_copied_while_others_are_multiplied(matmuls):
    assert not [facts for facts in matmuls if not facts["copies_async"]]


def test_hopper_multiplies_by_warp_groups(matmuls):
    narrow = {"lora_shrink_kernel"}  # ranks below 64 are too few rows
    slow = [
        facts
        for facts in matmuls
        if facts["capability"] == 90
        and facts["kernel"] not in narrow
        and "float32" not in facts["case"]
        and not facts["warp_group_mma"]
    ]
    assert not slow


def test_nothing_spills(matmuls):
    assert not [facts for facts in matmuls if facts["STACK"] + facts["LOCAL"]]


def test_split_sums_are_handed_over_behind_barriers(matmuls):
    split = [facts for facts in matmuls if facts["kernel"].endswith("_matmul_kernel")]
    assert split
    assert all(facts["hands_over"] for facts in split)
