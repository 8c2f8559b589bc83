from pagoda.rpc.v1.status_pb2 import Role, WorkerState, WorkerStatus
from pagoda_runtime.status import WorkerDirectory

Heard = list[tuple[str, str | None]]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def status(
    worker_id: str = "d1",
    epoch: str = "e1",
    role: "Role.ValueType" = Role.ROLE_DECODE,
    state: "WorkerState.ValueType" = WorkerState.WORKER_STATE_READY,
    sent: float = 0.0,
) -> WorkerStatus:
    return WorkerStatus(
        worker_id=worker_id, epoch=epoch, role=role, state=state, sent_unix_seconds=sent
    )


def make_directory() -> tuple[WorkerDirectory, Clock, Heard]:
    clock, heard = Clock(), Heard()
    directory = WorkerDirectory(clock=clock, expiry_seconds=1.5)
    directory.add_listener(lambda worker_id, s: heard.append((worker_id, s.epoch if s else None)))
    return directory, clock, heard


def test_alive_filters_by_role() -> None:
    directory, _, _ = make_directory()
    directory.on_status(status("d1"))
    directory.on_status(status("p1", role=Role.ROLE_PREFILL))

    assert [s.worker_id for s in directory.alive(Role.ROLE_PREFILL)] == ["p1"]
    assert len(directory.alive()) == 2


def test_a_heartbeat_of_an_id_that_is_none_is_nobody_s() -> None:
    directory, _, heard = make_directory()
    for name in ("", "a.b", "a\r\nPUB x 0", "*"):
        directory.on_status(status(name))

    assert (directory.alive(), heard) == ([], [])


def test_a_silent_worker_expires() -> None:
    directory, clock, heard = make_directory()
    directory.on_status(status())

    clock.now += 1.6
    directory.sweep()

    assert directory.alive() == []
    assert directory.get("d1") is None
    assert heard == [("d1", "e1"), ("d1", None)]


def test_a_heartbeat_renews() -> None:
    directory, clock, _ = make_directory()
    directory.on_status(status())
    clock.now += 1.0
    directory.on_status(status())
    clock.now += 1.0
    directory.sweep()

    assert directory.get("d1") is not None


def test_gone_removes_at_once() -> None:
    directory, _, heard = make_directory()
    directory.on_status(status())
    directory.on_status(status(state=WorkerState.WORKER_STATE_GONE))

    assert directory.alive() == []
    assert heard[-1] == ("d1", None)


def test_a_new_epoch_replaces_the_old_one() -> None:
    directory, _, heard = make_directory()
    directory.on_status(status(epoch="e1", sent=1))
    directory.on_status(status(epoch="e2", sent=2))

    assert [s.epoch for s in directory.alive()] == ["e2"]
    assert heard == [("d1", "e1"), ("d1", None), ("d1", "e2")]


def test_the_late_goodbye_of_an_earlier_epoch_is_ignored() -> None:
    directory, _, _ = make_directory()
    directory.on_status(status(epoch="e2", sent=2))
    directory.on_status(status(epoch="e1", sent=1, state=WorkerState.WORKER_STATE_GONE))

    assert [s.epoch for s in directory.alive()] == ["e2"]


def test_a_draining_worker_is_alive() -> None:
    directory, _, _ = make_directory()
    directory.on_status(status(state=WorkerState.WORKER_STATE_DRAINING))

    assert len(directory.alive()) == 1


def test_a_forgotten_worker_comes_back_with_its_next_heartbeat() -> None:
    directory, _, heard = make_directory()
    directory.on_status(status())
    directory.forget("d1")
    gone = directory.get("d1")
    directory.on_status(status())

    assert gone is None
    assert heard == [("d1", "e1"), ("d1", None), ("d1", "e1")]


def test_hold_adds_to_everybodys_time() -> None:
    directory, clock, _ = make_directory()
    directory.on_status(status())
    clock.now += 10
    directory.hold(9.0)
    directory.sweep()
    still_there = len(directory.alive())
    clock.now += 1.0
    directory.sweep()

    assert still_there == 1
    assert directory.alive() == []


def test_gateways_and_routers_may_be_silent_for_longer() -> None:
    directory, clock, heard = make_directory()
    directory.on_status(status("g1", role=Role.ROLE_GATEWAY))
    clock.now += 4.9
    directory.sweep()
    assert [s.worker_id for s in directory.alive()] == ["g1"]
    clock.now += 0.2
    directory.sweep()
    assert heard[-1] == ("g1", None)
