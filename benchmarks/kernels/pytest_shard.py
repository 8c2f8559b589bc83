"""A pytest plugin: runs one of n shares of the tests that touch the device, and writes each result.

Results are lines of JSON as they come, so that a killed process leaves what it had, and the next
one goes on after what was begun.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from case_worker import DEVICE_LOST
from device_tests import RESULTS_VARIABLE, SHARD_VARIABLE, lines_of
from orphans import end_with_parent


def touches_device(item: pytest.Item) -> bool:
    """Whether a test says something about the device, as far as its parameters tell."""
    if item.get_closest_marker("slow_cpu") is not None:
        return False
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return "cpu" not in (params.get("path"), params.get("device"))


def pytest_configure() -> None:
    """Leave no process behind on the device."""
    end_with_parent()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep every n-th of the device's tests, without those that an earlier process began."""
    shard, num_shards = (int(part) for part in os.environ[SHARD_VARIABLE].split("/"))
    on_device = [item for item in items if touches_device(item)]
    kept = on_device[shard::num_shards]
    earlier = lines_of(_results())
    if not any("collected" in line for line in earlier):
        _write({"collected": len(kept)})
    begun = {line.get("begun") for line in earlier}
    kept = [item for item in kept if item.nodeid not in begun]
    dropped = set(map(id, items)) - set(map(id, kept))
    config.hook.pytest_deselected(items=[item for item in items if id(item) in dropped])
    items[:] = kept


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write a file that cannot be imported as a failed test."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "reason": _reason(report)})


def pytest_runtest_logstart(nodeid: str) -> None:
    """Write that a test begins."""
    _write({"begun": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a test: of its call, or of a setup or teardown that went wrong."""
    if report.when == "call" or report.outcome != "passed":
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
        if report.failed:
            line |= {"reason": _reason(report), "output": "".join(_outputs(report))[:500]}
        _write(line)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """End the process where a test has cost it the device: all others would fail of that."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        _write({"test": nodeid, "outcome": "failed", "reason": f"the device is lost: {error}"})
        os._exit(DEVICE_LOST)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    lines = str(report.longrepr).strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines[-1:] or ["no message"])[0][:300]


def _outputs(report: pytest.TestReport) -> Iterator[str]:
    for _, text in report.sections:
        yield text


def _results() -> Path:
    return Path(os.environ[RESULTS_VARIABLE])


def _write(line: dict[str, object]) -> None:
    with _results().open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
