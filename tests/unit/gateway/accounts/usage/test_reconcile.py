"""What dead gateways left open is closed from workers' records: each token once, never twice."""

import random
from collections.abc import Iterator
from itertools import permutations

import pytest
from support.clocks import Now
from support.seeds import seed_of_tests

from pagoda.rpc.v1.generate_pb2 import CachedTokens
from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.receipts import Receipts
from pagoda_gateway.accounts.money.sealing import RECONCILED_SECONDS
from pagoda_gateway.accounts.usage.reconcile import UNBEGUN_SECONDS, Reconciler
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages


@pytest.fixture
def sequences(database: Database) -> SequenceUsages:
    return SequenceUsages(database)


@pytest.fixture
def alive() -> set[str]:
    return set()


@pytest.fixture
def reconciler(ledger: Ledger, sequences: SequenceUsages, alive: set[str], now: Now) -> Reconciler:
    return Reconciler(ledger, sequences, alive.__contains__, clock=now, unix_clock=lambda: 99.0)


def opened(request_id: str = "r", gateway_id: str = "dead", num_choices: int = 1) -> UsageRecord:
    return UsageRecord(
        open=UsageOpen(
            request_id=request_id,
            tenant="t",
            gateway_id=gateway_id,
            num_prompt_tokens=10,
            opened_unix_seconds=5,
            num_choices=num_choices,
        )
    )


def closed(num_output_tokens: int, request_id: str = "r", outcome: str = "finished") -> UsageRecord:
    return UsageRecord(
        close=UsageClose(
            request_id=request_id,
            num_prompt_tokens=10,
            num_output_tokens=num_output_tokens,
            outcome=outcome,
            closed_unix_seconds=6,
        )
    )


_numbers: Iterator[int] = iter(range(10**9))


def ended(
    first_index: int, num_tokens: int, *, index: int = 0, attempt: int = 0, worker: str = "w",
    request_id: str = "r", computed: int = 0, cached: int = 0, reason: str = "abort", ns: int = 7,
) -> SequenceUsage:  # fmt: skip
    return SequenceUsage(
        record_id=f"e-{next(_numbers)}",
        request_id=request_id,
        sequence_index=index,
        attempt=attempt,
        worker_id=worker,
        role=Role.ROLE_DECODE,
        first_index=first_index,
        num_published_tokens=num_tokens,
        num_computed_prompt_tokens=computed,
        cached=CachedTokens(cpu=cached),
        compute_ns=ns,
        finish_reason=reason,
        ended_unix_seconds=50.0,
    )


def had(num_tokens: int, *, index: int = 0, request_id: str = "r") -> SequenceUsage:
    """Return what the dead gateway noted that a client had."""
    return SequenceUsage(
        record_id=f"dead-{index}",
        request_id=request_id,
        sequence_index=index,
        worker_id="dead",
        role=Role.ROLE_GATEWAY,
        num_published_tokens=num_tokens,
        ended_unix_seconds=60.0,
    )


def running(final: SequenceUsage, num_tokens: int) -> SequenceUsage:
    """Return what the same attempt's worker said when it had published so many tokens."""
    record = SequenceUsage()
    record.CopyFrom(final)
    record.num_published_tokens, record.ended_unix_seconds = num_tokens, 0
    record.finish_reason, record.compute_ns = "", num_tokens
    return record


async def gone(reconciler: Reconciler, now: Now) -> tuple[int, int, int]:
    """Miss every gateway that is not alive for a minute; return what was (closed, lost, open)."""
    await reconciler.run(30)
    now.seconds += 60
    result = await reconciler.run(30)
    return (result.num_reconciled, result.num_lost, result.num_open)


async def test_tokens_of_several_attempts_and_workers_count_once(
    ledger: Ledger, sequences: SequenceUsages, reconciler: Reconciler, now: Now
) -> None:
    await ledger.apply([opened(num_choices=2)])
    await sequences.apply(
        [
            ended(0, 1, worker="prefill", computed=6, cached=4, reason=""),
            ended(1, 4, worker="one"),  # 1, 2, 3, 4; the gateway got 1 and 2 before it moved on
            ended(3, 5, attempt=1, worker="two", computed=12, reason="stop"),
            ended(0, 3, index=1, worker="one", computed=1, cached=9, reason="length"),
        ]
    )
    assert await gone(reconciler, now) == (1, 0, 0)
    receipt = await Receipts(ledger, wait_seconds=0).get("t", "r")
    assert receipt["outcome"] == "reconciled"
    assert receipt["output_tokens"] == 8 + 3
    assert receipt["prompt_tokens"] == 10
    assert receipt["cached_tokens"]["cpu"] == 4  # a prompt's first choice, as gateways count
    assert receipt["finish_reasons"] == ["stop", "length"]
    assert receipt["attempts"] == 3
    assert receipt["workers"] == ["prefill", "one", "two"]
    assert receipt["compute_seconds"] == 28e-9
    assert receipt["closed"] == 99.0


async def test_what_ended_and_never_began_is_counted(
    ledger: Ledger, reconciler: Reconciler
) -> None:
    await ledger.apply([closed(5, "whole"), opened("whole"), closed(5, "lacks its beginning")])
    late = closed(5, "its beginning may be on its way")
    late.close.closed_unix_seconds = 99.0 - UNBEGUN_SECONDS
    await ledger.apply([late])
    assert (await reconciler.run(30)).num_unbegun == 1


async def test_what_the_gateway_noted_is_what_clients_had(
    ledger: Ledger, sequences: SequenceUsages, reconciler: Reconciler, now: Now
) -> None:
    await ledger.apply([opened(num_choices=2)])
    await sequences.apply(
        [
            ended(0, 90, worker="one", computed=6, cached=4, reason="length"),
            ended(0, 70, index=1, worker="one", computed=1, reason="abort"),
            had(5),
            had(0, index=1),
        ]
    )
    assert await gone(reconciler, now) == (1, 0, 0)
    receipt = await Receipts(ledger, wait_seconds=0).get("t", "r")
    assert (receipt["outcome"], receipt["output_tokens"]) == ("reconciled", 5)
    assert (receipt["prompt_tokens"], receipt["cached_tokens"]["cpu"]) == (10, 4)
    assert receipt["finish_reasons"] == ["length", "abort"]
    assert (receipt["attempts"], receipt["workers"]) == (2, ["one"])


async def test_whose_client_had_nothing_pays_no_prompt(
    ledger: Ledger, sequences: SequenceUsages, reconciler: Reconciler, now: Now
) -> None:
    await ledger.apply([opened("r"), opened("s")])
    await sequences.apply([ended(0, 90, worker="one", computed=6, cached=4), had(0)])
    await sequences.apply([had(0, request_id="s")])
    assert await gone(reconciler, now) == (1, 1, 0)
    assert await ledger.totals("t") == (0, 0)
    receipt = await Receipts(ledger, wait_seconds=0).get("t", "r")
    assert receipt["cached_tokens"]["cpu"] == 0


async def test_what_clients_had_is_known_without_any_worker(
    ledger: Ledger, sequences: SequenceUsages, reconciler: Reconciler, now: Now
) -> None:
    await ledger.apply([opened()])
    await sequences.apply([had(3)])
    assert await gone(reconciler, now) == (1, 0, 0)
    assert await ledger.totals("t") == (10, 3)


async def test_nobody_knows_it_costs_nothing(
    ledger: Ledger, reconciler: Reconciler, now: Now
) -> None:
    await ledger.apply([opened()])
    assert await gone(reconciler, now) == (0, 1, 0)
    assert await ledger.totals("t") == (0, 0)
    assert (await Receipts(ledger, wait_seconds=0).get("t", "r"))["outcome"] == "lost"


async def test_a_living_gateways_requests_are_its_own(
    ledger: Ledger, reconciler: Reconciler, alive: set[str], now: Now
) -> None:
    alive.add("living")
    await ledger.apply([opened("a", "living"), opened("b", "dead")])
    assert await gone(reconciler, now) == (0, 1, 1)
    alive.clear()
    assert (await reconciler.run(0)).num_open == 1  # missed for the first time
    now.seconds += 4.9
    assert (await reconciler.run(0)).num_open == 1
    now.seconds += 0.2
    assert (await reconciler.run(0)).num_lost == 1


async def test_a_gateway_that_comes_back_is_missed_anew(
    ledger: Ledger, reconciler: Reconciler, alive: set[str], now: Now
) -> None:
    await ledger.apply([opened(gateway_id="g")])
    await reconciler.run(30)
    alive.add("g")
    now.seconds += 20
    await reconciler.run(30)
    alive.clear()
    now.seconds += 20
    assert (await reconciler.run(30)).num_open == 1


async def test_more_than_a_page_is_closed(
    ledger: Ledger, reconciler: Reconciler, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagoda_gateway.accounts.usage.reconcile.PAGE_ROWS", 3)
    await ledger.apply([opened(str(number)) for number in range(10)])
    assert await gone(reconciler, now) == (0, 10, 0)
    assert await gone(reconciler, now) == (0, 0, 0)


RECONCILED = closed(9, outcome="reconciled")
RECONCILED.close.closed_unix_seconds = 1000.0


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_the_gateways_own_close_wins_in_any_order(
    ledger: Ledger, order: tuple[int, ...]
) -> None:
    """It was in an outbox that somebody adopted after the request was reconciled."""
    ledger._clock = lambda: 1000.0 + RECONCILED_SECONDS
    records = [opened(), RECONCILED, closed(7)]
    for place in order:
        await ledger.apply([records[place]])
    await ledger.apply([RECONCILED])
    assert await ledger.totals("t") == (10, 7)
    await ledger.apply([closed(8)])
    assert await ledger.totals("t") == (10, 7)


async def test_what_was_reconciled_is_final_once_it_has_its_receipt(
    ledger: Ledger, reconciler: Reconciler
) -> None:
    ledger._clock = lambda: 1000.0 + RECONCILED_SECONDS
    receipts = Receipts(ledger, wait_seconds=0)
    await ledger.apply([opened(), RECONCILED])
    await reconciler.run(30)
    assert "number" not in await receipts.get("t", "r")
    ledger._clock = lambda: 1001.0 + RECONCILED_SECONDS
    await reconciler.run(30)
    assert (await receipts.get("t", "r"))["number"] == 1
    await ledger.apply([closed(7)])
    assert await ledger.totals("t") == (10, 9)


@pytest.mark.parametrize("late", ["disconnected", "failed", "finished"])
async def test_a_late_close_wins_however_the_request_ended(ledger: Ledger, late: str) -> None:
    await ledger.apply([opened(), RECONCILED, closed(3, outcome=late)])
    assert await ledger.totals("t") == (10, 3)


async def test_replaying_everything_twice_out_of_order_changes_nothing(
    ledger: Ledger, sequences: SequenceUsages
) -> None:
    """Row R17 of the reliability figures."""
    rng = random.Random(seed_of_tests())
    requests, parts = list[UsageRecord](), list[SequenceUsage]()
    for number in range(40):
        name = str(number)
        requests += [opened(name), closed(number, name)]
        parts += [ended(0, number, request_id=name, ns=number) for _ in range(2)]
    expected = (400, sum(range(40)))
    for _ in range(3):
        rng.shuffle(requests)
        rng.shuffle(parts)
        for start in range(0, len(requests), 9):
            await ledger.apply(requests[start : start + 9])
            await sequences.apply(parts[start : start + 9])
        assert await ledger.totals("t") == expected
    assert await sequences.compute_seconds("39") == 78e-9


async def test_what_a_killed_worker_said_while_it_ran_is_billed(
    ledger: Ledger, sequences: SequenceUsages, reconciler: Reconciler, now: Now
) -> None:
    await ledger.apply([opened()])
    final = ended(1, 40, cached=4, computed=6)
    await sequences.apply([running(final, count) for count in (12, 31, 25)])
    assert await gone(reconciler, now) == (1, 0, 0)
    receipt = await Receipts(ledger, wait_seconds=0).get("t", "r")
    assert (receipt["outcome"], receipt["output_tokens"]) == ("reconciled", 1 + 31)
    assert receipt["finish_reasons"] == ["abort"]
    assert receipt["cached_tokens"]["cpu"] == 4
    assert "compute_seconds" not in receipt  # nobody will ever say


async def test_the_last_word_of_a_worker_stands_in_any_order(sequences: SequenceUsages) -> None:
    for number, order in enumerate(permutations(range(4))):
        name = f"r{number}"
        final = ended(0, 9, request_id=name, ns=77, reason="length")
        said = [running(final, 3), running(final, 6), running(final, 9), final]
        for index in order:
            await sequences.apply([said[index]])
        await sequences.apply([said[index] for index in reversed(order)])  # and all of it again
        ((row,),) = (await sequences.of_requests([name])).values()
        assert (row["published_tokens"], row["compute_ns"]) == (9, 77)
        assert (row["finish_reason"], row["ended_unix_seconds"]) == ("length", 50.0)
        assert await sequences.compute_seconds(name) == 77e-9
