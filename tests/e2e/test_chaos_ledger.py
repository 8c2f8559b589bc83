"""The short form of `python -m chaos.ledger`: kills of each kind, and the ledger is right."""

from pathlib import Path

import pytest
from chaos.ledger import DATABASE, PAIR, Options, run_ledger
from support.seeds import seed_of_tests

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(400)]


async def test_no_token_is_lost_or_billed_twice(tmp_path: Path) -> None:
    faults = ("gateway", "applier", "decode", "nats", DATABASE)
    options = Options(
        faults=faults,
        num_faults=len(faults),
        num_streams=12,
        num_tokens=20,
        max_wait_seconds=0.3,
        outage_seconds=(0.5, 1.0),
        seed=seed_of_tests(),
    )
    result = await run_ledger(options, tmp_path / "stack", print)
    assert not result["problems"], result
    assert len(result["injected"]) == len(faults)
    assert result["num_received"] == result["num_billed"] > 0


async def test_a_gateway_killed_with_its_workers_bills_what_clients_got(tmp_path: Path) -> None:
    options = Options(
        faults=(PAIR,), num_faults=1, num_streams=12, num_tokens=400, max_wait_seconds=5.0,
        seed=seed_of_tests(),
    )  # fmt: skip
    result = await run_ledger(options, tmp_path / "stack", print)
    assert not result["problems"], result
    assert result["num_received"] == result["num_billed"]
    assert result["num_received_broken"] > 0
