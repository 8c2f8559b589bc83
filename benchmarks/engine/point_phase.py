"""Runs groups of points in processes: several at a time, or in turn with the device to themselves.

A process that dies or does not answer costs the point it was in. Knows processes, shares of time
and rows. Knows nothing of what is measured.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deadline import Deadline
from importable import HERE
from points import BUILD, Group
from supervise import DIED, POLL_SECONDS, Row, Rows, Shard

OnRows = Callable[[Rows], object]


@dataclass(frozen=True)
class Phase:
    """What the processes of some groups are told.

    Attributes:
        plan: name of the plan, see `plans`.
        size: name of the sizes that the plan is wanted in.
        device: ``cuda``, or ``cpu`` for tests of this code.
        seed: of all random data.
        folder: for files of the processes; theirs alone.
        on_rows: given all rows so far whenever there is a new one.
    """

    plan: str
    size: str
    device: str
    seed: int
    folder: Path
    on_rows: OnRows

    def run_beside_each_other(
        self, groups: Sequence[Group], deadline: Deadline, num_workers: int
    ) -> Rows:
        """Share groups among processes that run at the same time; nothing is timed so."""
        num_workers = min(num_workers, len(groups))
        parts = [groups[i::num_workers] for i in range(num_workers)]
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(self.started(part)) for part in parts]
            for process in processes:
                process.begin()
            self._watch(processes, deadline, {})
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
        with contextlib.ExitStack() as stack:
            process = first or stack.enter_context(self.started(groups[:1]))
            for i, group in enumerate(groups):
                following = groups[i + 1 : i + 2]
                ahead = stack.enter_context(self.started(following)) if following else None
                weights = [later.weight for later in groups[i:]]
                process.begin()
                self._watch([process], deadline.share(group.weight / sum(weights)), rows)
                process.shard.kill()
                rows |= process.completed_rows()
                self.on_rows(rows)
                if ahead is not None:
                    process = ahead
        return rows

    @contextlib.contextmanager
    def started(self, groups: Sequence[Group]) -> Iterator["GroupProcess"]:
        """Start a process that imports and then waits for `GroupProcess.begin`; end it on exit."""
        stem = self.folder / f"{self.plan}-{groups[0].name.replace(' ', '-')}"
        turn = stem.with_suffix(".turn")
        command = [sys.executable, str(HERE / "point_worker.py"), self.plan]
        command += ["--groups", *(group.name for group in groups), "--size", self.size]
        command += ["--device", self.device, "--seed", str(self.seed)]
        command += ["--folder", str(self.folder), "--turn", str(turn)]
        shard = Shard(command, stem.with_suffix(".jsonl"), stem.with_suffix(".err"))
        shard.start()
        try:
            yield GroupProcess(shard, turn, groups)
        finally:
            shard.kill()

    def _watch(
        self, processes: "Sequence[GroupProcess]", deadline: Deadline, earlier: Rows
    ) -> None:
        shards = [process.shard for process in processes]
        num_known = 0
        while not deadline.has_passed:
            running = [shard for shard in shards if not shard.is_done]
            if not running:
                return
            for shard in running:
                shard.step()
            rows = {key: row for shard in shards for key, row in shard.rows.items()}
            if len(rows) > num_known:
                num_known = len(rows)
                self.on_rows(earlier | rows)
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class GroupProcess:
    """A process, started again where it dies, and the groups that it measures.

    Attributes:
        shard: the process.
        turn: the file that it waits for.
        groups: what it measures.
    """

    shard: Shard
    turn: Path
    groups: Sequence[Group]

    def begin(self) -> None:
        """Let it measure."""
        self.turn.touch()
        self.shard.since = time.monotonic()

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
