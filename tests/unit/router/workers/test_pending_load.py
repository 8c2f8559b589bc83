from support.router_workers import decode

from pagoda_router.workers.pending_load import PendingLoad, PendingLoads

LOAD = PendingLoad(num_sequences=1, num_prefill_tokens=100, num_context_tokens=50, num_blocks=4)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock) -> PendingLoads:
    return PendingLoads(settle_seconds=0.1, max_seconds=1.0, clock=clock)


def test_charges_add_up() -> None:
    pending_loads = make(Clock())
    pending_loads.add("d", LOAD)
    pending_loads.add("d", LOAD)
    assert pending_loads.of("d") == PendingLoad(2, 200, 100, 8)
    assert pending_loads.of("other") == PendingLoad()


def test_heartbeat_ends_what_it_can_include() -> None:
    clock = Clock()
    pending_loads = make(clock)
    pending_loads.add("d", LOAD)
    clock.now = 0.2
    pending_loads.add("d", LOAD)
    clock.now = 0.25
    pending_loads.on_heartbeat("d")
    assert pending_loads.of("d") == LOAD


def test_charge_ends_by_age_without_heartbeats() -> None:
    clock = Clock()
    pending_loads = make(clock)
    pending_loads.add("d", LOAD)
    clock.now = 0.99
    assert pending_loads.of("d") == LOAD
    clock.now = 1.0
    assert pending_loads.of("d") == PendingLoad()


def test_new_sequences_take_free_places_before_they_wait() -> None:
    worker = decode("d", num_running=7, max_num_seqs=8)
    loaded = worker.plus(PendingLoad(3, 300, 100, 12))
    assert (loaded.num_running, loaded.num_waiting) == (8, 2)
    assert (loaded.num_waiting_tokens, loaded.num_context_tokens) == (300, 100)
    assert loaded.num_free_blocks == 988


def test_free_blocks_do_not_go_below_zero() -> None:
    assert decode("d", num_free_blocks=3).plus(LOAD).num_free_blocks == 0
