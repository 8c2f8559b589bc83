"""What is measured: a point, one row of the results, on a subject that its group shares.

Building a subject (weights, a pool, captured graphs) is slow, so the points of a group run in one
process. Knows nothing of processes, models or tables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from gpu.harness.ceilings import Ceilings
from gpu.harness.rows import Row

CEILINGS_FILE = "ceilings.json"


@dataclass(frozen=True)
class Setting:
    """What every group is given.

    Attributes:
        device: ``cuda``, or ``cpu`` for tests of this code.
        seed: of all random data.
        folder: where processes of one run leave files for each other.
    """

    device: str
    seed: int
    folder: Path

    @property
    def ceilings(self) -> Ceilings:
        """Of this device, measured earlier in this run."""
        return Ceilings.read(self.folder / CEILINGS_FILE)


class Subject:
    """What the points of a group share.

    Attributes:
        facts: of how it was built.
    """

    facts: Row

    def reset(self) -> None:
        """Drop what a point that failed may have left in disorder."""

    def close(self) -> None:
        """Give back what does not go with the process's memory."""


@dataclass(frozen=True)
class Point:
    """Something to find out.

    Attributes:
        name: unique in its group.
        run: measures; an exception costs this point alone.
        seconds: the process is ended after that.
        is_gate: unless it passes, the points after it are left out.
    """

    name: str
    run: Callable[[Any], Row]
    seconds: float = 30.0
    is_gate: bool = False


@dataclass(frozen=True)
class Group:
    """Points over one subject.

    Attributes:
        name: what the subject is.
        build: makes the subject; `Subject.facts` become its row.
        points: in order of what matters most: time may run out.
        weight: of this group's share of the time, beside the others'.
        requires: names of groups that must have passed, else this one is not run.
        prepare: imports what takes seconds, while another group may have the device; never raises.
    """

    name: str
    build: Callable[[Setting], Subject]
    points: tuple[Point, ...]
    weight: float = 1.0
    requires: tuple[str, ...] = ()
    prepare: Callable[[], object] = lambda: None


class NotAvailableError(Exception):
    """The host cannot do what a point needs; the reason is part of the result."""


def load_groups(plan: str, scope: str, device: str) -> list[Group]:
    """The groups of a plan.

    Args:
        plan: ``module:function``; the function takes the other two arguments.
        scope: what of it is wanted: a size, or a folder of bench files.
        device: as in `Setting`.
    """
    module, _, function = plan.partition(":")
    groups: list[Group] = getattr(import_module(module), function)(scope, device)
    return groups
