"""Whether any seat changes hands is told from flows alone as it is from their sequences."""

import random

import pytest
from support.engine_driver import make_request

from pagoda_engine import SamplingParams
from pagoda_engine.sampling.sampling_state import SamplingState
from pagoda_engine.scheduler import Sequence
from pagoda_engine.scheduler.queues import Queues
from pagoda_engine.scheduler.tenants.victims import Holdings, may_give_seats, seat_victim


def add(queues: Queues, rng: random.Random, number: int) -> None:
    params = SamplingParams(max_tokens=5)
    tenant = rng.randrange(4)
    request = make_request(
        str(number),
        [1],
        block_size=4,
        sampling=params,
        tenant=bytes([tenant]),
        weight=1.0 + tenant // 2,
        priority=rng.choice([0, 0, 2000]),
    )
    sequence = Sequence(
        request,
        number,
        max_model_len=99,
        sampling_state=SamplingState(params, eos_token_ids=()),
        is_import_pending=False,
    )
    queues.add(sequence)
    if rng.random() < 0.6:
        queues.take_out(sequence)
        queues.run(sequence)


@pytest.mark.parametrize("most", [4, 12])
def test_flows_say_whether_anybody_who_waits_gets_a_seat(most: int, seed: int) -> None:
    rng = random.Random(seed)
    answers = []
    for _ in range(300):
        queues = Queues(max_num_seqs=most)
        for number in range(rng.randint(2, most)):
            add(queues, rng, number)
        holdings = Holdings(queues.flows, queues.running, lambda _: 1)
        waiting = {sequence.flow for sequence in queues.waiting}
        victims = [seat_victim(holdings, queues.running, flow) for flow in waiting]
        answers.append(any(victim is not None for victim in victims))
        assert may_give_seats(queues.flows) == answers[-1]
    assert 20 < sum(answers) < 280
