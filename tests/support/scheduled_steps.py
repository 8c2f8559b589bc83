"""Sequences for a simulated scheduler, and what its steps are of."""

from pagoda_engine import SamplingParams
from pagoda_engine.scheduler import Sequence
from support.engine_driver import make_request
from support.scheduler_simulation import Simulation


def add(
    simulation: Simulation,
    sequence_id: str,
    num_prompt_tokens: int,
    *,
    max_tokens: int = 6,
    first_token: int = 0,
    **fields: object,
) -> Sequence:
    """Queue a sequence whose prompt shares nothing with one of another `first_token`."""
    prompt = [first_token, *range(1, num_prompt_tokens)]
    return simulation.add(
        make_request(
            sequence_id,
            prompt,
            block_size=4,
            sampling=SamplingParams(max_tokens=max_tokens),
            **fields,
        )
    )


def step_until_preempted(simulation: Simulation) -> None:
    for _ in range(30):
        simulation.step()
        if simulation.num_preempted:
            return
    raise AssertionError("nothing was preempted")


def batch_of(simulation: Simulation) -> dict[str, int]:
    return {s.sequence.sequence_id: s.num_new_tokens for s in simulation.step().batch}
