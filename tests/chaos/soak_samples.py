"""Memory, file descriptors and threads of every process over time, and how they grow."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression

import psutil

from chaos.system import System

SAMPLE_SECONDS = 2.0
BAD_LEVELS = ("ERROR", "CRITICAL", "FATAL")
BAD_MARKS = ("Traceback (most recent call last)", "[ERR]", "[FTL]")


@dataclass(slots=True)
class Usage:
    """Of one process: (seconds, bytes) while loaded; counts while idle, before and after."""

    pid: int
    memory: list[tuple[float, int]] = field(default_factory=list)
    idle_descriptors: list[int] = field(default_factory=list)
    idle_threads: list[int] = field(default_factory=list)

    def slope_mib_per_minute(self) -> float:
        """Least-squares growth of the private memory; 0 for one that hardly lived."""
        if len(self.memory) < 2:
            return 0.0
        seconds, sizes = zip(*self.memory, strict=True)
        return linear_regression(seconds, sizes).slope * 60 / 2**20


class Usages:
    """All processes of a system. A process that was replaced is a problem, not a sample."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.of = {member.name: Usage(member.pid) for member in system.members()}
        self.problems: list[str] = []

    async def sample(self) -> None:
        """Take memory until cancelled."""
        while True:
            now = time.monotonic()
            for name, process in self._processes():
                memory = process.memory_info()
                # Without shared pages: workers map each other's KV pools, of a fixed size, and
                # touch them little by little.
                self.of[name].memory.append((now, memory.rss - memory.shared))
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample_idle(self) -> None:
        """Count what must not grow; the system is idle now."""
        for name, process in self._processes():
            self.of[name].idle_descriptors.append(process.num_fds())
            self.of[name].idle_threads.append(process.num_threads())

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        for member in self._system.members():
            if member.pid != self.of[member.name].pid:
                self.problems.append(f"{member.name} was started again, as pid {member.pid}")
                self.of[member.name] = Usage(member.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                yield member.name, psutil.Process(member.pid)


def error_lines(logs: Path) -> list[str]:
    """Lines of all logs that say that something went wrong."""
    return [
        f"{path.name}: {line[:300]}"
        for path in sorted(logs.glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if _is_bad(line)
    ]


def _is_bad(line: str) -> bool:
    try:
        return json.loads(line)["level"] in BAD_LEVELS
    except (ValueError, KeyError, TypeError):
        return any(mark in line for mark in BAD_MARKS)
