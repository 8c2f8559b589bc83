"""Benchmarks whose smallest run is quick do run: what they stand in for is still what is asked."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SMALL = {
    "accounts/prefix_cost": "--pairs 1",
    "engine/sampling_on_cpu": "--turns 1 --vocab-sizes 2048 --rows 1",
    "scheduling/long_prompt": (
        "--prompt-tokens 512 --streams 2 --alone-steps 20 --budget 128 --threads 1"
    ),
    "scheduling/step_host_cost": "--batch 2 --steps 2 --tenants 2 --output-tokens 8 --step-ms 5",
    "scheduling/tenants": "--cost 1 0.066 0.022 --rounds 1 --requests 1",
    "serving/safety_cost": "--patterns 1 --repeats 1 --tokens 100",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_script_runs_and_prints(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *SMALL[name].split()])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
