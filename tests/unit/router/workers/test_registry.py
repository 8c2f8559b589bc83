import math

import pytest
from support.router_workers import IDENTITY

from pagoda.rpc.v1 import status_pb2
from pagoda_router.config import RouterSettings
from pagoda_router.workers.pending_load import PendingLoad, PendingLoads
from pagoda_router.workers.registry import WorkerRegistry

SETTINGS = RouterSettings(prior_prefill_tokens_per_second=123.0, prior_step_base_ms=7.0)


def make_status(
    worker_id: str = "d",
    epoch: str = "e1",
    role: "status_pb2.Role.ValueType" = status_pb2.ROLE_DECODE,
) -> status_pb2.WorkerStatus:
    return status_pb2.WorkerStatus(
        worker_id=worker_id,
        epoch=epoch,
        role=role,
        state=status_pb2.WORKER_STATE_READY,
        model=status_pb2.ModelCard(name="demo", kv_identity=IDENTITY, block_size=16),
        host_id="host-a",
    )


def make_registry(
    retired: list[tuple[str, str]] | None = None,
) -> tuple[WorkerRegistry, PendingLoads]:
    pending_loads = PendingLoads(settle_seconds=0.0, max_seconds=1.0, clock=lambda: 0.0)
    lives = [] if retired is None else retired
    return WorkerRegistry(SETTINGS, pending_loads, lambda *life: lives.append(life)), pending_loads


def test_workers_come_and_go() -> None:
    registry, _ = make_registry()
    registry.on_status("d", make_status())
    assert [worker.worker_id for worker in registry.workers()] == ["d"]
    registry.on_status("d", None)
    assert registry.workers() == []


def test_priors_stand_in_for_what_was_not_measured() -> None:
    registry, _ = make_registry()
    status = make_status()
    status.speed.step_per_sequence_ms = 3.0
    registry.on_status("d", status)
    (worker,) = registry.workers()
    assert worker.speeds.prefill_tokens_per_second == 123.0
    assert (worker.speeds.step_base_ms, worker.speeds.step_per_sequence_ms) == (0.0, 3.0)
    registry.on_status("d", make_status())
    assert registry.workers()[0].speeds.step_base_ms == 7.0
    assert registry.workers()[0].speeds.accepted_per_decode == 0.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
def test_what_no_speed_can_be_was_not_measured(bad: float) -> None:
    registry, _ = make_registry()
    registry.on_status("d", make_status())
    unmeasured = registry.workers()[0].speeds
    status = make_status()
    for field in status.speed.DESCRIPTOR.fields:
        setattr(status.speed, field.name, bad)
    registry.on_status("d", status)
    assert registry.workers()[0].speeds == unmeasured
    status = make_status()
    status.speed.prefill_tokens_per_second = 1e-306  # times would be infinite
    registry.on_status("d", status)
    assert registry.workers()[0].speeds == unmeasured


def test_a_prior_is_as_old_as_can_be() -> None:
    registry, _ = make_registry()
    status = make_status()
    registry.on_status("d", status)
    assert registry.workers()[0].speeds.prefill_age_seconds == math.inf
    status.speed.prefill_tokens_per_second, status.speed.prefill_age_seconds = 500.0, 31.0
    registry.on_status("d", status)
    assert registry.workers()[0].speeds.prefill_age_seconds == 31.0


def test_what_is_held_behind_windows_is_taken_from_the_heartbeat() -> None:
    registry, _ = make_registry()
    status = make_status()
    registry.on_status("d", status)
    assert registry.workers()[0].blocks_for(1600) == 100
    status.model.block_bytes, status.model.kv_window = 600, 32
    status.model.block_bytes_behind_window = 150
    registry.on_status("d", status)
    assert registry.workers()[0].blocks_for(1600) == 3 + 97 / 4


def test_what_speculation_brings_is_taken_from_the_heartbeat() -> None:
    registry, _ = make_registry()
    status = make_status()
    status.speed.step_per_proposed_token_ms = 0.25
    status.speed.proposed_per_decode, status.speed.accepted_per_decode = 3.0, 1.5
    registry.on_status("d", status)
    speeds = registry.workers()[0].speeds
    assert speeds.step_per_proposed_token_ms == 0.25
    assert (speeds.proposed_per_decode, speeds.accepted_per_decode) == (3.0, 1.5)


def test_kvstore_is_found_by_host_and_is_no_worker() -> None:
    registry, _ = make_registry()
    registry.on_status("kv", make_status("kv", role=status_pb2.ROLE_KVSTORE))
    assert registry.workers() == []
    assert registry.kvstores()["host-a"].worker_id == "kv"


def test_new_epoch_retires_the_old_one() -> None:
    retired: list[tuple[str, str]] = []
    registry, _ = make_registry(retired)
    registry.on_status("d", make_status(epoch="e1"))
    registry.on_status("d", None)
    registry.on_status("d", make_status(epoch="e2"))
    assert retired == [("d", "e1")]
    assert registry.is_outdated("d", "e1")
    assert not registry.is_outdated("d", "e2")
    assert not registry.is_outdated("d", "e3")
    assert not registry.is_outdated("unknown", "e1")


def test_heartbeat_ends_charges() -> None:
    registry, pending_loads = make_registry()
    registry.on_status("d", make_status())
    pending_loads.add("d", PendingLoad(num_sequences=1))
    assert registry.workers()[0].num_waiting == 1
    registry.on_status("d", make_status())
    assert registry.workers()[0].num_waiting == 0


def test_who_is_gone_leaves_no_load_behind() -> None:
    registry, pending_loads = make_registry()
    for name in ("a", "b"):
        registry.on_status(name, make_status(name))
        pending_loads.add(name, PendingLoad(num_sequences=1))
    registry.on_status("a", None)
    assert set(pending_loads._pending) == {"b"}
