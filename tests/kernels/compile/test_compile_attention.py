"""What attention compiles to beyond `test_compile`: bulk copies and warp-group products."""

import pytest
from support.compile_scripts import SCRIPTS, compiled_by
from support.compiled_kernel import CAPABILITIES, asked_capabilities

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def compiled():
    return compiled_by(SCRIPTS / "compile_attention_for_gpu.py")


def of(compiled, kernel, case="", capabilities=CAPABILITIES):
    """Facts of one kernel in the cases that begin with `case`; there must be some."""
    found = [
        facts
        for facts in compiled
        if facts["kernel"] == kernel
        and facts["case"].startswith(case)
        and facts["capability"] in capabilities
    ]
    assert found
    return found


@pytest.mark.parametrize("kernel", ["decode_kernel", "mla_decode_kernel", "mla_prefill_kernel"])
def test_overlaps_copies_with_arithmetic(compiled, kernel):
    assert all(facts["copies_async"] for facts in of(compiled, kernel))


def test_descriptors_become_bulk_copies(compiled):
    described = of(compiled, "prefill_kernel", "described")
    assert {facts["capability"] for facts in described} == {90, 100} & {*asked_capabilities()}
    assert all(facts["copies_bulk"] for facts in described)
    pointers = of(compiled, "prefill_kernel", "pointers")
    assert not any(facts["copies_bulk"] for facts in pointers)


def test_prefill_multiplies_by_warp_groups_on_hopper(compiled):
    for kernel in ("prefill_kernel", "mla_prefill_kernel"):
        assert all(facts["warp_group_mma"] for facts in of(compiled, kernel, capabilities=(90,)))


def test_latent_decode_of_all_heads_multiplies_by_warp_groups_on_hopper(compiled):
    found = of(compiled, "mla_decode_kernel", "MLA 128", (90,))
    assert all(facts["warp_group_mma"] for facts in found)


def test_launches_no_empty_kernel(compiled):
    assert all(facts["REG"] > 16 for facts in compiled)
