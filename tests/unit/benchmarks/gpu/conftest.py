"""Fixtures of the tests of `make check-gpu`: a device that is a script, cases, a way to import."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"
sys.path.append(str(BENCHMARKS))


class ScriptedClock:
    """A device whose every launch takes the same time; counts what it was asked."""

    def __init__(self, seconds=1e-3):
        self.seconds = seconds
        self.is_broken = False

    def measure(self, launch, budget_seconds):
        from gpu.harness.timing import Timing

        launch()
        return Timing.of([self.seconds] * 10)

    def check_device(self):
        if self.is_broken:
            raise RuntimeError("device lost")


@pytest.fixture
def clock():
    return ScriptedClock()


@pytest.fixture
def make_case():
    from gpu.kernels.case import Case

    def make(name="small", error=0.0, **changes):
        defaults = {
            "op": "fake",
            "check": lambda seed: error,
            "tolerance": 1e-3,
            "build": lambda: lambda: None,
        }
        return Case(name=name, **(defaults | changes))

    return make
