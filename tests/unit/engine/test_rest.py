"""Decodes wait for those that are about to join them, if others compute these meanwhile."""

from typing import Any

import pytest
from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, KvSource, LoadedModel
from pagoda_engine.scheduler.rest import MAX_REST, RestCounts, rest_after


class Processors:
    are_busy = True
    num_rests = 0

    def others_compute(self) -> bool:
        return self.are_busy

    def rest(self) -> None:
        self.num_rests += 1


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def processors() -> Processors:
    return Processors()


@pytest.fixture
def engine(tiny_model: LoadedModel, processors: Processors) -> Engine:
    return Engine(
        tiny_model,
        EngineConfig(num_blocks=64, block_size=4, max_num_seqs=8, max_model_len=64),
        hash_block=hash_block,
        shared_processors=processors,
        clock=Clock(),
    )


def add(engine: Engine, sequence_id: str, **fields: Any) -> None:
    prompt = [*range(9), len(sequence_id)]
    engine.add(make_request(sequence_id, prompt, block_size=4, **fields))


def decoding_and_joining(engine: Engine) -> None:
    add(engine, "decoding")
    engine.step()
    add(engine, "joining", kv_source=KvSource.IMPORT)
    add(engine, "too", kv_source=KvSource.IMPORT)
    engine.step()  # only reserves blocks
    engine.step()


def test_a_rest_is_the_longer_the_more_join() -> None:
    assert rest_after(2.0, RestCounts(num_running=10, num_joining=4)) == 0.0
    assert rest_after(2.0, RestCounts(num_running=10, num_joining=5)) == 2.0
    assert rest_after(2.0, RestCounts(num_running=4, num_joining=6)) == 6.0
    assert rest_after(2.0, RestCounts(num_running=1, num_joining=40)) == 2.0 * MAX_REST
    assert rest_after(2.0, RestCounts(num_running=4, num_joining=0)) == 0.0
    assert rest_after(2.0, RestCounts(num_running=0, num_joining=4)) == 0.0


def test_others_rest_half_of_the_time_for_who_has_nothing_else() -> None:
    def rest(num_running: int, num_joining: int, num_newcomers: int, num_flows: int = 1) -> float:
        return rest_after(2.0, RestCounts(num_running, num_joining, num_flows, num_newcomers))

    assert rest(num_running=64, num_joining=1, num_newcomers=1) == 2.0
    assert rest(num_running=64, num_joining=3, num_newcomers=3) == 2.0
    assert rest(num_running=64, num_joining=1, num_newcomers=1, num_flows=4) == 0.5
    assert rest(num_running=4, num_joining=5, num_newcomers=1) == 5.0


def test_decodes_rest_until_the_others_have_joined(engine: Engine, processors: Processors) -> None:
    decoding_and_joining(engine)
    first = engine.rest_seconds()
    assert first > 0
    assert processors.num_rests == 1
    assert engine.rest_seconds() < first  # some of it is over
    while engine.rest_seconds():
        pass
    engine.step()
    assert engine.rest_seconds() > 0  # and so after each step
    engine.import_finished("joining", num_computed_tokens=8)
    assert engine.rest_seconds() == 0


def test_a_tenant_rests_for_another_that_only_joins(engine: Engine) -> None:
    for number in range(4):
        add(engine, "decoding" * (number + 1), tenant=b"large")
    engine.step()
    add(engine, "joins", tenant=b"large", kv_source=KvSource.IMPORT)
    engine.step()
    engine.step()
    assert engine.rest_seconds() == 0  # it has others that run
    add(engine, "comes", tenant=b"small", kv_source=KvSource.IMPORT)
    engine.step()
    engine.step()
    assert engine.rest_seconds() > 0
    engine.import_finished("comes", num_computed_tokens=8)
    assert engine.rest_seconds() == 0


@pytest.mark.parametrize("tenant", [b"large", b"small"])
def test_only_the_background_rests_for_what_joins_in_the_background(
    engine: Engine, tenant: bytes
) -> None:
    add(engine, "batch", tenant=tenant, priority=2000)
    engine.step()
    for number in range(3):
        kv_source = KvSource.IMPORT
        add(engine, "joins" * (number + 1), tenant=tenant, priority=2000, kv_source=kv_source)
        engine.step()
    assert engine.rest_seconds() > 0
    add(engine, "decoding", tenant=b"large")
    engine.step()
    engine.step()
    assert engine.rest_seconds() == 0


def test_nobody_rests_for_nobody(engine: Engine, processors: Processors) -> None:
    add(engine, "alone")
    engine.step()
    assert engine.rest_seconds() == 0
    decoding_and_joining(engine)
    processors.are_busy = False
    assert engine.rest_seconds() == 0
    assert not processors.num_rests


def test_what_else_there_is_to_do_is_done_at_once(engine: Engine) -> None:
    decoding_and_joining(engine)
    assert engine.rest_seconds() > 0
    add(engine, "prompt")  # it is to be admitted, and its blocks reserved
    assert engine.rest_seconds() == 0
    engine.abort("prompt")
    assert engine.rest_seconds() == 0  # its end is to be told
    engine.step()
    assert engine.rest_seconds() > 0


def test_without_shared_processors_there_is_no_rest(tiny_model: LoadedModel) -> None:
    engine = Engine(
        tiny_model,
        EngineConfig(num_blocks=64, block_size=4, max_num_seqs=8, max_model_len=64),
        hash_block=hash_block,
        clock=Clock(),
    )
    decoding_and_joining(engine)
    assert engine.rest_seconds() == 0
