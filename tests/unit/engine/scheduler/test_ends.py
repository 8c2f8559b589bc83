"""What is free when a sequence has ended."""

import pytest
from support.scheduled_steps import add
from support.scheduler_simulation import make_simulation

from pagoda_engine import KvSource
from pagoda_engine.scheduler import SequenceState


@pytest.mark.parametrize("state", list(SequenceState)[:4], ids=lambda state: state.value)
def test_finish_frees_the_blocks_in_every_state(state: SequenceState) -> None:
    simulation = make_simulation(max_num_seqs=1)
    if state is SequenceState.WAITING:
        add(simulation, "other", 4, first_token=9, max_tokens=20)
    fields: dict[SequenceState, dict[str, object]] = {
        SequenceState.IMPORTING: {"kv_source": KvSource.IMPORT},
        SequenceState.HELD: {"prefill_only": True},
    }
    sequence = add(simulation, "a", 9, **fields.get(state, {}))
    simulation.step()
    assert sequence.state is state
    simulation.scheduler.finish(sequence)
    simulation.scheduler.check_invariants()
    held = sum(len(s.block_ids) for s in simulation.scheduler.running)
    assert simulation.pool.num_free_blocks == 32 - held


def test_check_invariants_finds_a_leaked_block() -> None:
    simulation = make_simulation()
    sequence = add(simulation, "a", 9)
    simulation.step()
    sequence.block_ids.pop()
    with pytest.raises(AssertionError):
        simulation.scheduler.check_invariants()
