"""A pytest plugin: runs one of n shares of the tests that touch the device, as a worker of a shard.

Results are lines of JSON as they come, see `gpu.harness.supervise`, so that a killed process leaves
what it had, and the next one goes on after what was begun.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpu.harness.orphans import end_with_parent
from gpu.harness.supervise import DEVICE_LOST
from gpu.kernels.device_tests import COLLECTED, TESTS

TEST_SECONDS = 60.0
"""Longer than the time after which `device_tests.ini` ends a process and says where it was."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What a shard passes to its workers."""
    parser.addoption("--shard", required=True, help="i/n: every n-th test from the i-th")
    parser.addoption("--output", required=True, help="where lines are written")
    parser.addoption("--first", type=int, default=0, help="index of the first test to run")


def pytest_configure(config: pytest.Config) -> None:
    """Leave no process behind on the device."""
    end_with_parent()
    config.pluginmanager.register(ShardPlugin(config))


def touches_device(item: pytest.Item) -> bool:
    """Whether a test says something about the device, as far as its parameters tell."""
    if item.get_closest_marker("slow_cpu") is not None:
        return False
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return "cpu" not in (params.get("path"), params.get("device"))


class ShardPlugin:
    """Keeps the tests of the share and writes a line before and a line after each."""

    def __init__(self, config: pytest.Config) -> None:
        self._shard: str = config.getoption("--shard")
        self._output: str = config.getoption("--output")
        self._first: int = config.getoption("--first")
        self._indices: dict[str, int] = {}
        self._row: dict[str, Any] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep every n-th of the device's tests, without those that an earlier process began."""
        shard, num_shards = map(int, self._shard.split("/"))
        share = [item for item in items if touches_device(item)][shard::num_shards]
        self._indices = {item.nodeid: index for index, item in enumerate(share)}
        self._begin(COLLECTED, self._shard, self._first - 1)
        self._end({"status": "passed", "num_tests": len(share)})
        kept = share[self._first :]
        dropped = set(map(id, items)) - set(map(id, kept))
        config.hook.pytest_deselected(items=[item for item in items if id(item) in dropped])
        items[:] = kept

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write a file that cannot be imported as a failed test."""
        if report.failed:
            self._begin(TESTS, report.nodeid, self._first - 1)
            self._end({"status": "failed", "reason": _reason(report)})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write that a test begins."""
        self._begin(TESTS, nodeid, self._indices[nodeid])
        self._row = {"status": "not run"}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test: of its call, or of a setup or teardown that went wrong."""
        if report.when == "call" or report.outcome != "passed":
            self._row = {"status": report.outcome, "seconds": report.duration}
            if report.failed:
                output = "".join(_outputs(report))[:500]
                self._row |= {"reason": _reason(report), "output": output}

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End the process where a test has cost it the device: all others would fail of that."""
        try:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except RuntimeError as error:
            self._end({"status": "failed", "reason": f"the device is lost: {error}"})
            os._exit(DEVICE_LOST)
        self._end(self._row)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Tests that failed, or none at all, are no failure of the process."""
        if exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.OK

    def _begin(self, group: str, name: str, index: int) -> None:
        line = {"begin": index, "group": group, "name": name, "seconds": TEST_SECONDS}
        self._write(line)

    def _end(self, row: dict[str, Any]) -> None:
        self._write({"row": row})

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._output, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    lines = str(report.longrepr).strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines[-1:] or ["no message"])[0][:300]


def _outputs(report: pytest.TestReport) -> Iterator[str]:
    for _, text in report.sections:
        yield text
