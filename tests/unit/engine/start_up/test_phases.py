import pytest

from pagoda_engine.start_up.phases import StartUp


class StoppedError(Exception):
    pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_phases_are_told_and_timed() -> None:
    told: list[str] = []
    clock = Clock()
    start_up = StartUp(told.append, clock=clock)
    with start_up.phase("loading weights"):
        clock.now += 2.0
    with start_up.phase("warming up"):
        clock.now += 0.5

    assert told == ["loading weights", "warming up"]
    assert start_up.seconds == {"loading weights": 2.0, "warming up": 0.5}
    assert start_up.summary() == "started in 2.50 s: loading weights 2.00, warming up 0.50"


def test_a_phase_may_come_twice() -> None:
    clock = Clock()
    start_up = StartUp(lambda _: None, clock=clock)
    for seconds in (2.0, 0.5):
        with start_up.phase("warming up"):
            clock.now += seconds

    assert start_up.seconds == {"warming up": 2.5}


def test_progress_is_told_once_a_second_at_most() -> None:
    told: list[str] = []
    clock = Clock()
    start_up = StartUp(told.append, clock=clock)
    with start_up.phase("loading weights"):
        for done in range(0, 101, 10):
            start_up.percent(done, 100)
            clock.now += 0.25

    assert told == ["loading weights", "loading weights 40%", "loading weights 80%"]


def test_progress_is_a_percentage_or_a_count() -> None:
    told: list[str] = []
    clock = Clock()
    start_up = StartUp(told.append, clock=clock)
    with start_up.phase("capturing graphs"):
        clock.now += 1.0
        start_up.count(5, 12)
        clock.now += 1.0
        start_up.percent(1, 3)
        clock.now += 1.0
        start_up.percent(0, 0)  # nothing to do is no division by zero

    assert told[1:] == ["capturing graphs 5/12", "capturing graphs 33%", "capturing graphs 0%"]


def test_whatever_reports_ends_once_the_start_is_stopped() -> None:
    told: list[str] = []
    stopped: list[bool] = []

    def check_stop() -> None:
        if stopped:
            raise StoppedError

    start_up = StartUp(told.append, check_stop=check_stop)
    with start_up.phase("loading weights"):
        start_up.percent(1, 2)
        stopped.append(True)
        with pytest.raises(StoppedError):
            start_up.percent(2, 2)
        with pytest.raises(StoppedError):
            start_up.count(2, 2)
    with pytest.raises(StoppedError), start_up.phase("warming up"):
        pass

    assert told == ["loading weights"]
