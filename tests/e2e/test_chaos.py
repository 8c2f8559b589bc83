"""The short form of `make chaos`: a fault of each kind, and every stream as if undisturbed."""

from pathlib import Path

import pytest
from chaos.cases import CASES
from chaos.runner import Options, Runner

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)]


async def test_no_fault_costs_a_stream(tmp_path: Path) -> None:
    case = CASES["short"]
    options = Options(
        num_faults=len(case.faults),
        num_streams=4,
        num_tokens=40,
        num_prompts=6,
        topology="prefill=1,decode=2",
        pause_seconds=(1.0, 1.5),
        silence_seconds=20.0,
        max_wait_seconds=0.3,
    )
    result = await Runner(options, tmp_path).run(case)
    assert not result.all_problems(), result.as_dict()
    assert sum(row.num_faults for row in result.rows.values()) == len(case.faults)
    assert sum(len(row.streams) for row in result.rows.values()) >= len(case.faults) * 4
