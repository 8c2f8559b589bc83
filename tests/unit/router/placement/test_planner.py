import dataclasses
import math
import random
from collections import Counter
from typing import Any

import pytest
from support.router_workers import SETTINGS, SPEEDS, decode, make_request, prefill
from support.seeds import seed_of_tests

from pagoda_router.placement.candidate import PrefixMatch, RouteOutcome
from pagoda_router.placement.planner import PlacementSettings, compare
from pagoda_router.placement.processors import LATELY_SECONDS
from pagoda_router.workers.pending_load import PendingLoad, PendingLoads
from pagoda_router.workers.snapshot import WorkerRole, WorkerSnapshot

AUTO = PlacementSettings("auto", 10, 2.0, 1.5, 4)


def names(
    workers: list[WorkerSnapshot], settings: PlacementSettings = SETTINGS, **changes: Any
) -> tuple[str, str]:
    comparison = compare(make_request(**changes), workers, {}, settings)
    assert comparison.chosen is not None
    return comparison.chosen.decode_worker_id, comparison.chosen.prefill_worker_id


def test_cost_is_ttft_plus_expected_tokens() -> None:
    comparison = compare(make_request(160), [prefill("p"), decode("d")], {}, SETTINGS)
    chosen = comparison.chosen
    assert chosen is not None
    # 160 ms to compute, 10 blocks to move; a step takes 10 + 2 + 1.6
    assert (chosen.compute_ms, chosen.transfer_ms) == (160.0, 10.0)
    assert chosen.ttft_ms == 170.0
    assert chosen.tpot_ms == pytest.approx(13.6)
    assert chosen.cost_ms == pytest.approx(170 + 136)


def test_short_outputs_count_as_short() -> None:
    request = make_request(160, max_tokens=2)
    comparison = compare(request, [prefill("p"), decode("d")], {}, SETTINGS)
    assert comparison.candidates[0].cost_ms == pytest.approx(170 + 2 * 13.6)


def test_prefix_wins_over_an_idle_worker() -> None:
    workers = [prefill("cold"), prefill("warm", num_waiting_tokens=50), decode("d")]
    comparison = compare(make_request(160), workers, {"warm": PrefixMatch(8, 8)}, SETTINGS)
    assert comparison.candidates[0].prefill_worker_id == "warm"
    assert comparison.margin_ms == pytest.approx(160 - (50 + 32))


def test_load_wins_over_a_prefix_once_the_queue_costs_more() -> None:
    workers = [prefill("cold"), prefill("warm", num_waiting_tokens=200), decode("d")]
    comparison = compare(make_request(160), workers, {"warm": PrefixMatch(8, 8)}, SETTINGS)
    assert comparison.candidates[0].prefill_worker_id == "cold"


def test_decode_worker_that_holds_the_prefix_saves_the_transfer() -> None:
    workers = [prefill("p"), decode("d1"), decode("d2")]
    comparison = compare(make_request(160), workers, {"d2": PrefixMatch(9, 9)}, SETTINGS)
    assert comparison.candidates[0].decode_worker_id == "d2"
    assert comparison.candidates[0].transfer_ms == pytest.approx(1.0)


def test_off_sends_every_prompt_through_a_prefill_worker() -> None:
    workers = [prefill("p", num_waiting_tokens=3000), decode("d")]
    comparison = compare(make_request(), workers, {"d": PrefixMatch(9, 9)}, SETTINGS)
    assert [c.prefill_worker_id for c in comparison.candidates] == ["p"]


def test_auto_prefills_locally_where_that_is_faster() -> None:
    assert names([prefill("p", num_waiting_tokens=500), decode("d")], AUTO) == ("d", "")
    assert names([prefill("p"), decode("d", num_waiting_tokens=500)], AUTO) == ("d", "p")


def test_auto_spares_sequences_that_a_long_prompt_would_hold_up() -> None:
    """Of 160 tokens, 160 ms; a step of 4 takes 18, so a local prefill holds up each for 142."""
    busy = decode("d", num_running=4)
    assert names([prefill("p", num_waiting_tokens=500), busy], AUTO) == ("d", "p")
    assert names([prefill("p", num_waiting_tokens=600), busy], AUTO) == ("d", "")
    comparison = compare(make_request(160), [busy], {}, AUTO)
    assert comparison.candidates[0].held_up_ms == pytest.approx(4 * 142)
    assert comparison.candidates[0].cost_ms == pytest.approx(160 + 10 * 21.6 + 4 * 142)


def test_auto_computes_a_turn_of_a_chat_where_its_history_is() -> None:
    workers = [prefill("p"), decode("d", num_running=4)]
    matches = {"d": PrefixMatch(9, 9)}  # of 10 blocks: what is left takes less than a step
    comparison = compare(make_request(160), workers, matches, AUTO)
    assert comparison.chosen is not None
    assert comparison.chosen.prefill_worker_id == ""
    assert comparison.chosen.held_up_ms == 0.0


def test_auto_computes_where_the_kv_is_wanted_if_the_processors_are_the_same() -> None:
    """Decodes wait for a prompt, and for those before it, wherever on them it is computed."""
    shared = {"shares_processors": True}
    busy = decode("d", num_running=4, num_waiting_tokens=100, **shared)
    near, far = prefill("near", **shared), prefill("far", host_id="host-b", **shared)
    assert names([near, busy], AUTO) == ("d", "")
    candidates = compare(make_request(160), [near, busy], {}, AUTO).candidates
    assert [c.queue_ms for c in candidates] == [100.0, 100.0]
    assert [c.held_up_ms for c in candidates] == [pytest.approx(4 * 142)] * 2
    assert names([far, busy], AUTO) == ("d", "far")
    assert names([prefill("apart"), busy], AUTO) == ("d", "apart")
    matches = {"near": PrefixMatch(9, 9)}  # what is saved there is worth a transfer
    comparison = compare(make_request(160), [near, busy], matches, AUTO)
    assert comparison.candidates[0].prefill_worker_id == "near"


def test_a_worker_that_has_computed_no_prompt_lately_goes_by_the_others_speed() -> None:
    """By its prior a decode worker would look slow, never be asked and so never be measured."""
    prior = dataclasses.replace(
        SPEEDS, prefill_tokens_per_second=10.0, prefill_age_seconds=math.inf
    )
    assert names([prefill("p"), decode("d", speeds=prior)], AUTO) == ("d", "")
    slow = dataclasses.replace(prior, prefill_age_seconds=0.0)
    assert names([prefill("p"), decode("d", speeds=slow)], AUTO) == ("d", "p")
    for speed, chosen in ((300.0, ""), (200.0, "p")):  # of 1000: a bad moment, another device
        then = dataclasses.replace(
            SPEEDS, prefill_tokens_per_second=speed, prefill_age_seconds=LATELY_SECONDS + 1
        )
        assert names([prefill("p"), decode("d", speeds=then)], AUTO) == ("d", chosen)
    workers = [prefill("slow", speeds=slow), prefill("fast"), decode("d", speeds=prior)]
    assert names(workers, AUTO) == ("d", "")
    gone = dataclasses.replace(SPEEDS, prefill_tokens_per_second=1e6)
    workers = [prefill("slow", speeds=slow), prefill("gone", speeds=gone, is_ready=False)]
    candidates = compare(make_request(160), [*workers, decode("d", speeds=prior)], {}, AUTO)
    assert candidates.candidates[0].compute_ms == 16_000.0
    unmeasured = [prefill("p", speeds=prior), decode("d", speeds=prior)]
    assert compare(make_request(160), unmeasured, {}, AUTO).candidates[0].compute_ms == 16_000.0


def test_prompts_do_not_cross_between_hosts_for_nothing() -> None:
    """A prompt holds up whoever decodes on the processors that compute it, not its own decodes."""
    workers = [
        make(f"{name}-{host}", host_id=host, shares_processors=True, **load)
        for host in ("a", "b")
        for name, make, load in (
            ("p", prefill, {}),
            ("d", decode, {"num_running": 4}),
        )
    ]
    candidates = compare(make_request(160), workers, {}, AUTO).candidates
    assert candidates[0].prefill_worker_id == ""
    assert [c.held_up_ms for c in candidates] == [pytest.approx(4 * 142)] * 6


def test_neighbours_that_decode_wait_for_a_prompt_too() -> None:
    shared = {"shares_processors": True}
    busy, idle = decode("busy", num_running=3, **shared), decode("idle", **shared)
    comparison = compare(make_request(160), [busy, idle], {"busy": PrefixMatch(5, 5)}, AUTO)
    assert comparison.candidates[0].decode_worker_id == "busy"  # half the prompt, for all of them


def test_what_waits_is_counted_by_the_speed_of_whoever_computes_it() -> None:
    shared = {"shares_processors": True}
    fast = dataclasses.replace(SPEEDS, prefill_tokens_per_second=1e6)
    other = prefill("other", model="other", speeds=fast, num_waiting_tokens=100_000, **shared)
    workers = [other, prefill("p", num_waiting_tokens=300, **shared), decode("d", **shared)]
    candidates = compare(make_request(160), workers, {}, AUTO).candidates
    assert [c.queue_ms for c in candidates] == [pytest.approx(400.0)] * 2
    prior = dataclasses.replace(
        SPEEDS, prefill_tokens_per_second=10.0, prefill_age_seconds=math.inf
    )
    workers = [prefill("p", speeds=prior, num_waiting_tokens=300, **shared), decode("d", **shared)]
    candidates = compare(make_request(160), workers, {}, AUTO).candidates
    assert [c.queue_ms for c in candidates] == [pytest.approx(300.0)] * 2


def test_prefill_workers_that_idle_beside_decodes_leave_the_others_their_share() -> None:
    shared = {"shares_processors": True}
    workers = [decode("d", num_running=8, max_num_seqs=64, **shared), prefill("near", **shared)]
    workers += [prefill("far", host_id="host-b", num_running=6)]
    assert names(workers, AUTO, num_prompt_tokens=1600) == ("d", "far")


@pytest.mark.parametrize(
    "prefill_worker",
    [
        None,
        prefill("p", is_ready=False),
        prefill("p", kv_identity=b"other-identity-0"),
        prefill("p", model="other"),
    ],
)
def test_without_a_usable_prefill_worker_decode_prefills(
    prefill_worker: WorkerSnapshot | None,
) -> None:
    workers = [decode("d"), *([prefill_worker] if prefill_worker else [])]
    assert names(workers) == ("d", "")


def test_a_sequence_stays_with_the_workers_of_its_model() -> None:
    """Whatever the others' prefix hits, load and number: names and identities cross each other."""
    draw = random.Random(seed_of_tests())
    kinds = [(name, identity * 16) for name in ("a", "b") for identity in (b"x", b"y")]
    num_placed = 0
    for _ in range(200):
        workers = []
        for i in range(draw.randrange(1, 24)):
            model, identity = draw.choice(kinds)
            make = draw.choice([prefill, decode])
            load = {"num_running": draw.randrange(9), "num_waiting": draw.randrange(17)}
            workers.append(make(f"w{i}", model=model, kv_identity=identity, **load))
        matches = {worker.worker_id: PrefixMatch(draw.randrange(10), 10) for worker in workers}
        model, identity = draw.choice(kinds)
        own = {
            worker.worker_id: worker.role
            for worker in workers
            if (worker.model, worker.kv_identity) == (model, identity)
        }
        request = make_request(model=model, kv_identity=identity)
        comparison = compare(request, workers, matches, draw.choice([SETTINGS, AUTO]))
        chosen = comparison.chosen
        if chosen is None:
            full = comparison.outcome is RouteOutcome.OVERLOADED
            assert full or WorkerRole.DECODE not in own.values()
            continue
        num_placed += 1
        assert own[chosen.decode_worker_id] is WorkerRole.DECODE
        if chosen.prefill_worker_id:
            assert own[chosen.prefill_worker_id] is WorkerRole.PREFILL
    assert num_placed > 20


def test_excluded_prefill_worker_leaves_local_prefill() -> None:
    workers = [prefill("p"), decode("d")]
    assert names(workers, excluded_worker_ids=frozenset({"p"})) == ("d", "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"is_ready": False}, "draining"),
        ({"kv_identity": b"other-identity-0"}, "kv_identity"),
        ({"max_model_len": 100}, "max_model_len is 100, the prompt needs 161"),
        (
            {"num_blocks": 5, "max_model_len": 0},
            "KV pool holds 80 tokens, the prompt needs 161",
        ),
        ({"block_size": 0}, "block_size of 0"),
    ],
)
def test_unusable_workers_are_listed_with_the_reason(
    changes: dict[str, object], reason: str
) -> None:
    comparison = compare(make_request(160), [decode("bad", **changes), decode("ok")], {}, SETTINGS)
    assert comparison.candidates[0].decode_worker_id == "ok"
    assert comparison.candidates[1].decode_worker_id == "bad"
    assert reason in comparison.candidates[1].reason


def test_excluded_worker_is_ruled_out() -> None:
    request = make_request(excluded_worker_ids=frozenset({"d1"}))
    comparison = compare(request, [decode("d1"), decode("d2")], {}, SETTINGS)
    assert comparison.candidates[0].decode_worker_id == "d2"
    assert comparison.candidates[1].reason == "failed this request before"


def test_no_worker_says_why() -> None:
    comparison = compare(make_request(), [decode("d", is_ready=False)], {}, SETTINGS)
    assert comparison.outcome is RouteOutcome.NO_WORKER
    assert "d: draining" in comparison.message
    assert compare(make_request(), [], {}, SETTINGS).message.endswith("none is alive")


def test_prefill_worker_alone_is_no_plan() -> None:
    assert compare(make_request(), [prefill("p")], {}, SETTINGS).outcome is RouteOutcome.NO_WORKER


def test_full_queues_are_overload_with_the_predicted_wait() -> None:
    full = {"num_running": 8, "num_waiting": 16}
    slow = decode("slow", **full, num_context_tokens=10_000)
    comparison = compare(make_request(), [decode("d", **full), slow], {}, SETTINGS)
    assert comparison.outcome is RouteOutcome.OVERLOADED
    # 17 must finish; a step takes 10 + 2 * 8 = 26 ms; a place is free every 10 / 8 steps
    assert comparison.retry_after_seconds == pytest.approx(max(1.0, 17 * 10 * 26 / 8 / 1000))
    assert comparison.candidates[0].reason == "queue full: 16 of 16 waiting"
    assert comparison.chosen is None


def test_a_queue_that_only_our_own_choices_fill_is_no_overload() -> None:
    """Short sequences may have ended since the heartbeat; the worker refuses what is too much."""
    busy = decode("busy").plus(PendingLoad(num_sequences=8 + 16))
    assert not busy.is_queue_full
    comparison = compare(make_request(), [busy], {}, SETTINGS)
    assert comparison.outcome is RouteOutcome.PLACED
    assert comparison.candidates[0].reason == (
        "likely full: 0 waiting at its heartbeat, 16 placed since, of 16"
    )
    idle = decode("idle", speeds=dataclasses.replace(SPEEDS, step_base_ms=10_000.0))
    chosen = compare(make_request(), [busy, idle], {}, SETTINGS).chosen
    assert chosen is not None
    assert chosen.decode_worker_id == "idle"


def test_full_prefill_queue_is_overload_when_local_prefill_is_off() -> None:
    workers = [prefill("p", num_waiting=16, num_waiting_tokens=4000), decode("d")]
    comparison = compare(make_request(), workers, {}, SETTINGS)
    assert comparison.outcome is RouteOutcome.OVERLOADED
    assert comparison.retry_after_seconds == pytest.approx(4.0)
    assert compare(make_request(), workers, {}, AUTO).outcome is RouteOutcome.PLACED


def test_equal_costs_are_broken_by_the_request_alike_on_every_replica() -> None:
    workers = [decode(f"d{i}") for i in range(4)]
    first = names(workers)
    assert all(names(random.Random(i).sample(workers, 4)) == first for i in range(5))
    chosen = Counter(names(workers, request_id=f"r{i}") for i in range(100))
    assert len(chosen) == 4
    assert max(chosen.values()) < 45


def test_many_workers_make_at_most_16_candidates() -> None:
    workers = [prefill(f"p{i}") for i in range(40)] + [decode(f"d{i}") for i in range(40)]
    assert len(compare(make_request(), workers, {}, SETTINGS).candidates) == 16


def test_room_is_kept_for_who_was_ruled_out() -> None:
    workers = [decode(f"d{i}") for i in range(20)]
    workers += [decode(f"bad{i}", is_ready=False) for i in range(20)]
    candidates = compare(make_request(), workers, {}, SETTINGS).candidates
    assert [candidate.reason for candidate in candidates] == [""] * 12 + ["draining"] * 4


@pytest.mark.parametrize("settings", [SETTINGS, AUTO])
@pytest.mark.parametrize("num_prefills", [0, 4])
def test_idle_holder_of_the_whole_prompt_is_chosen_among_32(
    settings: PlacementSettings, num_prefills: int
) -> None:
    """It decodes a little slower than 31 others, and saves them all of the prompt."""
    workers = [decode(f"d{i}") for i in range(31)]
    workers += [decode("holder", num_context_tokens=1)]
    workers += [prefill(f"p{i}", num_waiting_tokens=1000) for i in range(num_prefills)]
    matches = {"holder": PrefixMatch(187, 187)}
    request = make_request(187 * 16 + 1)
    chosen = compare(request, workers, matches, settings).chosen
    assert chosen is not None
    assert chosen.decode_worker_id == "holder"


def test_prefill_worker_with_the_longest_prefix_is_compared_behind_a_long_queue() -> None:
    workers = [prefill(f"p{i}") for i in range(31)]
    workers += [prefill("holder", num_waiting_tokens=5000), decode("d")]
    workers = [w for w in workers if w.worker_id not in {f"p{i}" for i in range(20)}]
    comparison = compare(make_request(160), workers, {"holder": PrefixMatch(9, 9)}, SETTINGS)
    listed = {c.prefill_worker_id: c for c in comparison.candidates}
    assert listed["holder"].num_device_blocks == 9
    assert comparison.candidates[0].prefill_worker_id != "holder"


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_cold_prompts_reach_every_one_of_32_workers(role: str) -> None:
    """All idle; replicas that hear of the workers in another order choose alike."""
    if role == "decode":
        workers = [decode(f"w{i}", max_num_seqs=64) for i in range(32)]
    else:
        workers = [prefill(f"w{i}", max_num_seqs=64) for i in range(32)]
        workers += [decode(f"d{i}", max_num_seqs=64) for i in range(8)]
    pending_loads = PendingLoads(settle_seconds=0.1, max_seconds=1.0, clock=lambda: 0.0)
    chosen: Counter[str] = Counter()
    for number in range(64):
        request = make_request(160, request_id=f"cold-{number}")
        loaded = [worker.plus(pending_loads.of(worker.worker_id)) for worker in workers]
        comparison = compare(request, loaded, {}, SETTINGS)
        other_replica = compare(request, loaded[::-1], {}, SETTINGS)
        assert comparison.chosen == other_replica.chosen is not None
        for worker_id in {comparison.chosen.decode_worker_id, comparison.chosen.prefill_worker_id}:
            chosen[worker_id] += 1
            pending_loads.add(worker_id, PendingLoad(num_sequences=1, num_prefill_tokens=160))
    assert {chosen[f"w{i}"] for i in range(32)} == {2}


def test_cheapest_pair_is_found_among_many_workers() -> None:
    workers = [prefill(f"p{i}", num_waiting_tokens=1000 - i) for i in range(40)]
    workers += [decode(f"d{i}", num_context_tokens=4000 - 100 * i) for i in range(40)]
    assert names(workers) == ("d39", "p39")


def spread(
    num_requests: int, workers: list[WorkerSnapshot], matches: dict[str, PrefixMatch]
) -> Counter[str]:
    """Place requests one after another with no heartbeat in between."""
    pending_loads = PendingLoads(settle_seconds=0.1, max_seconds=1.0, clock=lambda: 0.0)
    chosen: Counter[str] = Counter()
    for _ in range(num_requests):
        loaded = [worker.plus(pending_loads.of(worker.worker_id)) for worker in workers]
        comparison = compare(make_request(160), loaded, matches, SETTINGS)
        assert comparison.chosen is not None
        for worker_id in (
            comparison.chosen.decode_worker_id,
            comparison.chosen.prefill_worker_id,
        ):
            chosen[worker_id] += 1
            pending_loads.add(worker_id, PendingLoad(num_sequences=1, num_prefill_tokens=16))
    return chosen


def test_hot_prefix_spreads_instead_of_herding() -> None:
    workers = [decode("d", max_num_seqs=64)]
    workers += [prefill(f"p{i}", max_num_seqs=64) for i in range(4)]
    chosen = spread(32, workers, {"p0": PrefixMatch(9, 9)})
    # a share is 8; nobody takes more than 1.5 times that
    assert max(chosen[f"p{i}"] for i in range(4)) <= 13
    assert min(chosen[f"p{i}"] for i in range(4)) >= 4


def test_burst_within_one_heartbeat_spreads_evenly() -> None:
    workers = [prefill("p", max_num_seqs=64), *(decode(f"d{i}") for i in range(4))]
    chosen = spread(16, workers, {})
    assert {chosen[f"d{i}"] for i in range(4)} == {4}


def test_share_follows_capacity() -> None:
    workers = [decode("small", max_num_seqs=4, num_running=4, max_num_waiting=64)]
    workers += [decode("large", max_num_seqs=28, num_running=6)]
    comparison = compare(make_request(), workers, {"small": PrefixMatch(9, 9)}, SETTINGS)
    assert comparison.candidates[0].decode_worker_id == "large"
    assert "over its share: 4 sequences, bound 4" in comparison.candidates[1].reason


@pytest.mark.parametrize("settings", [SETTINGS, AUTO])
@pytest.mark.parametrize(("seed", "num_each"), [*((seed, 4) for seed in range(20)), (20, 24)])
def test_choice_is_the_cheapest_of_every_pair(
    seed: int, num_each: int, settings: PlacementSettings
) -> None:
    rng = random.Random(seed)
    workers = [
        make(
            f"{kind}{i}",
            num_waiting_tokens=rng.randrange(500),
            num_context_tokens=rng.randrange(5000),
            num_running=rng.randrange(4),
            speeds=dataclasses.replace(SPEEDS, transfer_bytes_per_second=rng.choice([5e4, 1e6])),
        )
        for kind, make in (("p", prefill), ("d", decode))
        for i in range(num_each)
    ]
    matches = {
        w.worker_id: PrefixMatch(n := rng.randrange(8), n + rng.randrange(3)) for w in workers
    }
    best = compare(make_request(160), workers, matches, settings).candidates[0]
    prefills, decodes = workers[:num_each], workers[num_each:]
    alone = [
        compare(make_request(160), pair, matches, settings).candidates[0]
        for d in decodes
        for pair in (*([[d]] if settings is AUTO else []), *([d, p] for p in prefills))
    ]
    allowed = [candidate for candidate in alone if not candidate.reason]
    assert best.cost_ms == pytest.approx(min(candidate.cost_ms for candidate in allowed))


def test_a_sequence_goes_only_where_its_adapter_is() -> None:
    one, two = b"1" * 16, b"2" * 16
    workers = [
        prefill("p1", adapters=frozenset({one})),
        prefill("p2", adapters=frozenset({one, two})),
        decode("d1"),
        decode("d2", adapters=frozenset({two})),
    ]
    assert names(workers, adapter=two) == ("d2", "p2")
    comparison = compare(make_request(160, adapter=one), workers, {}, SETTINGS)
    assert comparison.outcome is RouteOutcome.NO_WORKER
    reasons = {c.decode_worker_id: c.reason for c in comparison.candidates}
    assert reasons["d1"] == f"has no adapter {one.hex()}"
    assert names([*workers[:1], decode("d")]) == ("d", "p1")  # who names none goes anywhere
