import pytest
from gpu.harness.ceilings import Ceilings
from gpu.kernels.plan import baseline_rows, check_row, time_row

CEILINGS = Ceilings(4e12, 8e14, 2e-6)


@pytest.mark.parametrize(
    ("error", "status"),
    [(0.0, "passed"), (1e-3, "passed"), (2e-3, "wrong"), (float("nan"), "wrong")],
)
def test_only_an_error_within_tolerance_passes(clock, make_case, error, status):
    row = check_row(make_case(error=error), 7, clock)
    assert row["status"] == status
    assert row["seed"] == 7


def test_check_waits_for_the_device(clock, make_case):
    clock.is_broken = True
    with pytest.raises(RuntimeError, match="device lost"):
        check_row(make_case(), 7, clock)


def test_bytes_are_judged_by_copy_bandwidth(clock, make_case):
    row = time_row(make_case(num_bytes=int(3.6e9), goal=0.85), CEILINGS, clock)
    assert row["p20_us"] == row["p50_us"] == row["p80_us"] == pytest.approx(1000)
    assert row["gigabytes_per_second"] == pytest.approx(3600)
    assert row["fraction_of_ceiling"] == pytest.approx(0.9)
    assert row["meets_goal"] is True


def test_operations_are_judged_by_the_matmul_rate(clock, make_case):
    row = time_row(make_case(num_flops=int(4e11), goal=0.6), CEILINGS, clock)
    assert row["teraflops_per_second"] == pytest.approx(400)
    assert row["fraction_of_ceiling"] == pytest.approx(0.5)
    assert row["meets_goal"] is False


def test_the_higher_floor_counts(clock, make_case):
    row = time_row(make_case(num_bytes=int(2e9), num_flops=int(4e10)), CEILINGS, clock)
    assert row["floor_us"] == pytest.approx(500)
    assert row["meets_goal"] is None


def test_a_baseline_that_raises_is_not_available(clock, make_case):
    def missing():
        raise ModuleNotFoundError("No module named 'flashinfer'")

    case = make_case(baselines={"flashinfer": missing, "sdpa": lambda: lambda: None})
    rows = baseline_rows(case, clock, are_compiled=False)
    assert rows["flashinfer"] == {
        "unavailable": "ModuleNotFoundError: No module named 'flashinfer'"
    }
    assert rows["sdpa"]["p50_us"] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("are_compiled", "names"), [(False, {"sdpa"}), (True, {"flex", "compile"})]
)
def test_baselines_that_take_seconds_to_compile_are_timed_apart(
    clock, make_case, are_compiled, names
):
    case = make_case(baselines=dict.fromkeys(("flex", "sdpa", "compile"), lambda: lambda: None))
    assert baseline_rows(case, clock, are_compiled=are_compiled).keys() == names
