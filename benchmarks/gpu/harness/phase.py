"""Runs groups of points in processes: several at a time, or in turn with the device to themselves.

A process that dies or does not answer costs the point it was in. Knows processes, shares of time
and rows. Knows nothing of what is measured.
"""

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu.harness.deadline import Deadline
from gpu.harness.points import Group, load_groups
from gpu.harness.rows import BUILD, OnRows, Row, Rows
from gpu.harness.supervise import DIED, Shard, watch

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Phase:
    """What the processes of some groups are told.

    Attributes:
        plan: see `load_groups`.
        scope: see `load_groups`.
        device: ``cuda``, or ``cpu`` for tests of this code.
        seed: of all random data.
        folder: for files of the processes; theirs alone.
        on_rows: given all rows so far whenever there is a new one.
    """

    plan: str
    scope: str
    device: str
    seed: int
    folder: Path
    on_rows: OnRows

    def groups(self) -> list[Group]:
        """All groups of the plan."""
        return load_groups(self.plan, self.scope, self.device)

    def run_beside_each_other(
        self, groups: Sequence[Group], deadline: Deadline, num_workers: int
    ) -> Rows:
        """Share groups among processes that run at the same time; nothing is timed so."""
        num_workers = min(num_workers, len(groups))
        parts = [groups[i::num_workers] for i in range(num_workers)]
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(self.started(part)) for part in parts]
            for process in processes:
                process.shard.begin()
            watch([process.shard for process in processes], deadline, self.on_rows)
        rows: Rows = {}
        for process in processes:
            rows |= process.completed_rows()
        return rows

    def run_in_turn(
        self, groups: Sequence[Group], deadline: Deadline, first: "GroupProcess | None" = None
    ) -> Rows:
        """Give each group the device alone, and its share of the time.

        The next group's process starts early and waits, so that its imports cost no time.

        Args:
            groups: in order.
            deadline: of all of them.
            first: the process of the first group, if it was started before.
        """
        rows: Rows = {}

        def save(new: Rows) -> None:
            self.on_rows(rows | new)

        with contextlib.ExitStack() as stack:
            process = first or stack.enter_context(self.started(groups[:1]))
            for i, group in enumerate(groups):
                following = groups[i + 1 : i + 2]
                ahead = stack.enter_context(self.started(following)) if following else None
                weights = [later.weight for later in groups[i:]]
                process.shard.begin()
                share = deadline.share(group.weight / sum(weights))
                watch([process.shard], share, save)
                process.shard.kill()
                save(process.completed_rows())
                rows |= process.completed_rows()
                if ahead is not None:
                    process = ahead
        return rows

    @contextlib.contextmanager
    def started(self, groups: Sequence[Group]) -> Iterator["GroupProcess"]:
        """Start a process that imports and then waits for `Shard.begin`; end it on exit."""
        command = [sys.executable, str(WORKER), self.plan, "--wait"]
        command += ["--groups", *(group.name for group in groups), "--scope", self.scope]
        command += ["--device", self.device, "--seed", str(self.seed)]
        command += ["--folder", str(self.folder)]
        name = re.sub(r"[^\w.-]+", "-", f"{self.plan} {groups[0].name}")
        shard = Shard(command, self.folder / f"{name}.err")
        shard.start()
        try:
            yield GroupProcess(shard, groups)
        finally:
            shard.kill()


@dataclass(frozen=True)
class GroupProcess:
    """A process, started again where it dies, and the groups that it measures.

    Attributes:
        shard: the process.
        groups: what it measures.
    """

    shard: Shard
    groups: Sequence[Group]

    def completed_rows(self) -> Rows:
        """Return its rows, and one for every point that was not reached, which says why."""
        rows = dict(self.shard.rows)
        died = rows.pop(DIED, None)
        for group in self.groups:
            missing = _failed_gate(group, rows) or {"status": "out of time"}
            if died is not None:
                missing = {"status": "left out", "reason": died["reason"]}
            for name in (BUILD, *(point.name for point in group.points)):
                rows.setdefault((group.name, name), dict(missing))
        return rows


def _failed_gate(group: Group, rows: Rows) -> Row | None:
    for name in (BUILD, *(point.name for point in group.points if point.is_gate)):
        row = rows.get((group.name, name))
        if row is not None and row["status"] != "passed":
            return {"status": "left out", "reason": f"{name}: {row['status']}"}
    return None
