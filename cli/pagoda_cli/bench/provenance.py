"""Where numbers come from: machine, versions, commit, time. Written beside every result."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_GIT_TIMEOUT_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything needed to judge or repeat a measurement."""

    command: list[str]
    time: str  # UTC, ISO 8601
    pagoda_version: str
    commit: str  # empty outside a checkout; "+dirty" if the tree was changed
    cpu_model: str
    num_cores: int  # this process may use
    memory_bytes: int
    python: str
    system: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return asdict(self)


def provenance(command: list[str]) -> Provenance:
    """Describe this machine and this checkout."""
    return Provenance(
        command=command,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        pagoda_version=_version(),
        commit=_commit(Path(__file__).parent),
        cpu_model=_cpu_model(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        system=platform.platform(),
    )


def _version() -> str:
    try:
        return version("pagoda-cli")
    except PackageNotFoundError:
        return "unknown"


def _commit(folder: Path) -> str:
    head = _git(folder, "rev-parse", "HEAD")
    if not head:
        return ""
    return f"{head}+dirty" if _git(folder, "status", "--porcelain") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
