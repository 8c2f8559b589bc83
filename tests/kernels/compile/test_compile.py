"""Every kernel compiles for GPUs that need not be present, and fits them."""

import json

import pytest
from support.compile_scripts import (
    bound_by_issue,
    compiled_by_all,
    resource_table,
    spilling,
    too_large,
)
from support.compiled_kernel import asked_capabilities
from support.triton_modules import triton_modules
from triton.runtime.jit import KernelInterface

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def compiled():
    return compiled_by_all()


def test_leaves_no_kernel_out(compiled):
    defined = {
        name
        for module in triton_modules()
        for name, value in vars(module).items()
        if name.endswith("_kernel") and isinstance(value, KernelInterface)
    }
    assert defined
    assert {(facts["kernel"], facts["capability"]) for facts in compiled} == {
        (name, capability) for name in defined for capability in asked_capabilities()
    }


def test_fits_shared_memory(compiled):
    assert not too_large(compiled)


def test_spills_next_to_no_registers(compiled):
    assert not spilling(compiled)


def test_issues_no_more_than_memory_allows(compiled):
    assert not bound_by_issue(compiled)


def test_attention_overlaps_copies_with_arithmetic(compiled):
    waiting = [
        facts
        for facts in compiled
        if facts["kernel"] in ("decode_kernel", "prefill_kernel") and not facts["copies_async"]
    ]
    assert not waiting


def test_resources_make_a_table(compiled):
    table = resource_table(compiled)
    assert len(table["rows"]) == len(compiled)
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert json.loads(json.dumps(table)) == table
