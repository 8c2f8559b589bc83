from pagoda_runtime.tasks.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def open_breaker(clock: Clock) -> Breaker:
    breaker = Breaker(open_seconds=1.0, clock=clock)
    breaker.record(has_succeeded=False)
    breaker.record(has_succeeded=False)
    return breaker


def test_one_failure_is_forgiven() -> None:
    breaker = Breaker(open_seconds=1.0, clock=Clock())
    breaker.record(has_succeeded=False)
    assert breaker.allows()
    breaker.record(has_succeeded=True)
    breaker.record(has_succeeded=False)
    assert breaker.allows()


def test_two_failures_in_a_row_open_it_for_a_while() -> None:
    clock = Clock()
    breaker = open_breaker(clock)
    assert (breaker.allows(), breaker.is_open) == (False, True)
    clock.now = 0.99
    assert not breaker.allows()


def test_one_caller_tries_when_the_time_is_up() -> None:
    clock = Clock()
    breaker = open_breaker(clock)
    clock.now = 1.0
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.record(has_succeeded=True)
    assert (breaker.allows(), breaker.is_open) == (True, False)
