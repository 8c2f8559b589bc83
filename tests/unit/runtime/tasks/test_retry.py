from pagoda_runtime.tasks.retry import retry_delay


def test_delays_spread_around_what_was_asked_for() -> None:
    delays = [retry_delay(2.0) for _ in range(200)]

    assert 1.0 <= min(delays) < 1.5
    assert 2.5 < max(delays) <= 3.0
