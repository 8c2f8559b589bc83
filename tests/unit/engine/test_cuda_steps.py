"""Steps on a CUDA device never wait for it, compile nothing once the engine is warm, and fit it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.compile_scripts import CACHE, bound_by_issue, spilling, too_large

SCRIPT = Path(__file__).with_name("cuda_steps.py")
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served() -> dict[str, dict[str, object]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, SCRIPT],
        env={**environment, "PYTHONPATH": str(TESTS), "TRITON_CACHE_DIR": str(CACHE)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = map(json.loads, result.stdout.splitlines())
    return {line.pop("model"): line for line in lines}


@pytest.mark.parametrize("model", ["dense", "mixture"])
def test_steps_wait_for_nothing(served: dict[str, dict[str, object]], model: str) -> None:
    """The script fails at the first value or copy that a step's work asks for."""
    assert served[model]["num_replays"] > 10
    assert served[model]["num_verifying"] > 0
    assert served[model]["num_steps"] > served[model]["num_reports"] > 0


@pytest.mark.parametrize("model", ["dense", "mixture"])
def test_a_warm_engine_compiles_nothing(served: dict[str, dict[str, object]], model: str) -> None:
    assert served[model]["late"] == []


@pytest.mark.parametrize("model", ["dense", "mixture"])
def test_what_is_launched_compiles_for_hopper(
    served: dict[str, dict[str, Any]], model: str
) -> None:
    compiled = served[model]["compiled"]
    assert len(compiled) >= 10
    for refused in (spilling, too_large, bound_by_issue):
        assert not refused(compiled)
