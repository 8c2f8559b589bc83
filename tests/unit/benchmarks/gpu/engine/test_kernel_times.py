import pytest
import torch
from gpu.engine.kernel_times import device_events, device_time


def event(name, ts, dur, grid=None):
    args = {} if grid is None else {"grid": grid}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args}


def test_launches_are_added_up_by_name_and_grid():
    events = [
        event("matmul", 100.0, 30.0, [4, 1, 1]),
        event("matmul", 130.0, 10.0, [2, 1, 1]),
        event("matmul", 200.0, 34.0, [4, 1, 1]),
        event("Memcpy DtoH (Device -> Pinned)", 240.0, 1.0),
    ]
    wide, narrow, copy = device_time(events, num_steps=2).kernels
    assert (wide.name, wide.grid, wide.per_step) == ("matmul", (4, 1, 1), 1.0)
    assert wide.median_seconds == pytest.approx(32e-6)
    assert wide.seconds == pytest.approx(32e-6)
    assert (narrow.grid, narrow.per_step) == ((2, 1, 1), 0.5)
    assert narrow.seconds == pytest.approx(5e-6)
    assert (copy.grid, copy.per_step) == ((), 0.5)


def test_what_runs_at_the_same_time_is_busy_once():
    # 100-150, 120-140 within it, 145-160 beyond it, nothing until 180, 180-190
    events = [event(str(i), *times) for i, times in enumerate([(180, 10), (120, 20), (145, 15)])]
    found = device_time([*events, event("first", 100, 50)], num_steps=1)
    assert found.busy_seconds == pytest.approx(70e-6)
    assert found.idle_seconds == pytest.approx(20e-6)


def test_a_profiled_run_is_seen():
    a = torch.ones(64, 64)
    events = device_events(lambda: [a @ a for _ in range(3)], torch.device("cpu"))
    by_name = {kernel.name: kernel for kernel in device_time(events, num_steps=3).kernels}
    assert by_name["aten::mm"].per_step == 1.0
