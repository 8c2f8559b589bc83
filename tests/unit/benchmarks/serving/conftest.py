"""A way to import the scripts of `benchmarks/serving`, and runs to compare."""

import sys
from pathlib import Path

import pytest

SERVING = Path(__file__).resolve().parents[4] / "benchmarks" / "serving"
sys.path.append(str(SERVING))


@pytest.fixture
def make_run():
    """Return a function that makes a run of two requests."""
    from peers.comparison import Run
    from peers.watch import Seen

    from pagoda_cli.bench.client import Outcome
    from pagoda_cli.bench.results import ResultRecorder

    def make(*, seconds=1.0, ttft=0.1, foreign=0.0, steal=0.0, mib=100, num_failed=0, num_ok=2):
        recorder = ResultRecorder()
        for _ in range(num_ok):
            recorder.add(
                Outcome(
                    ttft_seconds=ttft,
                    e2e_seconds=ttft + 0.9,
                    num_output_tokens=10,
                    counted_by="usage",
                )
            )
        for _ in range(num_failed):
            recorder.add(Outcome(failure="disconnected", message="closed"))
        return Run(recorder.results(seconds), Seen(mib << 20, 1.5, foreign, steal))

    return make


@pytest.fixture
def comparison(make_run):
    """Three repetitions: ours at 20 tok/s; peers at 10, 20, 40 and at 5, 40, 10."""
    from driving.load import Load
    from peers.comparison import Comparison

    load = Load(concurrency=1, num_requests=2, prompt_tokens=8, output_tokens=10)
    made = Comparison(repeats=3, fraction=1)
    for repetition, (fast, slow) in enumerate([(2.0, 4.0), (1.0, 0.5), (0.5, 2.0)]):
        for name, seconds in (("Pagoda", 1.0), ("One", fast), ("Other", slow)):
            run = make_run(seconds=seconds, ttft=seconds / 10)
            made.add("c=1", load, name, repetition, run, is_ours=name == "Pagoda")
    return made
