from opentelemetry.context import Context

from pagoda_engine import SamplingParams, SequenceRequest
from pagoda_worker.sequences import LiveSequence, SequenceTable, sequence_id_of


def make(request_id: str, index: int = 0, attempt: int = 0, deadline: float = 100.0):
    sequence_id = sequence_id_of(request_id, index, attempt)
    request = SequenceRequest(sequence_id, (1,), (), bytes(16), SamplingParams(max_tokens=1))
    return LiveSequence(
        sequence_id=sequence_id,
        request_id=request_id,
        sequence_index=index,
        attempt=attempt,
        gateway_id="g",
        context=Context(),
        deadline=deadline,
        request=request,
    )


async def test_empty_is_set_while_there_are_none() -> None:
    table, sequence = SequenceTable(), make("r")
    assert table.empty.is_set()
    table.add(sequence)
    assert not table.empty.is_set()
    table.remove(sequence)
    table.remove(sequence)
    assert table.empty.is_set()


async def test_attempts_are_found_by_request_and_index() -> None:
    table = SequenceTable()
    sequences = [make("r", 0, 0), make("r", 0, 1), make("r", 1, 0), make("q", 0, 0)]
    for sequence in sequences:
        table.add(sequence)
    assert table.attempts("r", [0]) == sequences[:2]
    assert table.attempts("r") == sequences[:3]
    assert table.attempts("unknown") == []


async def test_waiting_ends_with_the_reservation() -> None:
    table, sequence = SequenceTable(), make("r")
    table.add(sequence)
    assert table.num_waiting == 1
    sequence.stages.reserved = 1.0
    assert table.num_waiting == 0


async def test_overdue_are_named_once() -> None:
    table = SequenceTable()
    late, early = make("late", deadline=10.0), make("early", deadline=99.0)
    table.add(late)
    table.add(early)
    assert table.overdue(10.0) == [late]
    late.is_ending = True
    assert table.overdue(10.0) == []
