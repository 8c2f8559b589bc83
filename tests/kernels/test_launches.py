"""Serving compiles nothing, searches nothing, and a decode step can be captured in a CUDA graph."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.seeds import seed_of_tests
from support.triton_modules import triton_modules
from triton.runtime.autotuner import Autotuner, Heuristics

SCRIPT = Path(__file__).with_name("serving_launches.py")
TESTS = SCRIPT.parents[1]
FAMILIES = ("dense", "quantised", "mixture", "adapters", "latent", "others", "transfers")


@pytest.fixture(scope="module")
def launched():
    """What the script reports, by family; it fails if anything asks the device for a value."""
    seed = str(seed_of_tests())
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), seed],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = map(json.loads, done.stdout.splitlines())
    return {report["family"]: report for report in reports}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_serving_compiles_nothing_after_a_warm_up_of_every_tile_size(launched, family):
    assert launched[family]["warm"]
    assert not launched[family]["new"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES[:-1])
def test_a_decode_step_can_be_captured(launched, family):
    assert launched[family]["graph"]


@pytest.mark.slow
def test_sampling_is_one_launch_and_rare_truncations_another(launched):
    assert launched["dense"]["graph"][-5:] == [
        "penalise_kernel", "sample_kernel", "sample_kernel", "truncate_kernel", "sample_kernel",
    ]  # fmt: skip


def test_nothing_is_tuned_by_a_launch():
    for module in triton_modules():
        tuned = (Autotuner, Heuristics)
        assert not [value for value in vars(module).values() if isinstance(value, tuned)]
