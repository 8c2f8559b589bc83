from pagoda_worker import cancellations as module
from pagoda_worker.cancellations import KEPT_SECONDS, Cancellations


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_attempt_and_all_before_it_are_cancelled() -> None:
    cancelled = Cancellations(Clock())
    cancelled.add("r", [2], 1)
    assert [cancelled.covers("r", 2, attempt) for attempt in range(3)] == [True, True, False]
    assert not cancelled.covers("r", 3, 0)
    assert not cancelled.covers("other", 2, 0)


def test_no_index_means_all_and_no_attempt_every_one() -> None:
    cancelled = Cancellations(Clock())
    cancelled.add("r", [], None)
    assert cancelled.covers("r", 7, 9)


def test_the_later_attempt_counts() -> None:
    cancelled = Cancellations(Clock())
    cancelled.add("r", [0], 2)
    cancelled.add("r", [0], 1)
    assert cancelled.covers("r", 0, 2)


def test_they_are_forgotten_after_a_while() -> None:
    clock = Clock()
    cancelled = Cancellations(clock)
    cancelled.add("r", [0], 0)
    clock.now += KEPT_SECONDS + 1
    assert not cancelled.covers("r", 0, 0)
    cancelled.add("s", [0], 0)
    assert len(cancelled._last) == 1


def test_they_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    cancelled = Cancellations(Clock())
    for index in range(10):
        cancelled.add("r", [index], 0)
    assert [index for index in range(10) if cancelled.covers("r", index, 0)] == [7, 8, 9]
