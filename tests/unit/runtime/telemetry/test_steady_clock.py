from pagoda_runtime.telemetry.steady_clock import SteadyClock


def test_a_wall_clock_that_is_set_changes_no_difference() -> None:
    wall, monotonic = 1_000_000.0, 5.0
    clock = SteadyClock(lambda: wall, lambda: monotonic)
    assert clock() == 1_000_000.0
    wall, monotonic = wall + 3600.0, monotonic + 2.0
    assert clock() == 1_000_002.0
    clock.sync()
    assert clock() == 1_003_600.0
