"""Real child processes, small Python scripts."""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.errors import ChildExitedError, ChildNotStartedError
from pagoda_cli.up.supervisor import Supervisor

pytestmark = pytest.mark.slow

UP = "print('up', flush=True)"
KILL = "os.kill(os.getpid(), 9)"
FOREVER = f"import time; {UP}; time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOREVER
LEAVES_CHILD = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); {FOREVER}"
)


def spec(folder: Path, name: str, script: str, stage: int = 0) -> ChildSpec:
    return ChildSpec(
        name=name,
        command=(sys.executable, "-S", "-c", script),
        environ=dict(os.environ),
        log=folder / f"{name}.log",
        stop_stage=stage,
    )


def is_alive(process: psutil.Process) -> bool:
    """A zombie is dead; who reaps it is up to the machine's init."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def until(is_true: Callable[[], bool], act: Callable[[], object] = lambda: None) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            act()
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def supervised(*specs: ChildSpec, seconds: float = 5.0):  # type: ignore[no-untyped-def]
    reports: list[str] = []
    supervisor = Supervisor(specs, report=reports.append, margin_seconds=seconds)
    supervisor.start()
    try:
        await until(lambda: all("up" in s.log.read_text() for s in specs))
        yield supervisor, reports
    finally:
        hurry = asyncio.Event()
        hurry.set()
        await supervisor.stop(hurry)


async def stop(supervisor: Supervisor, *, hurry: bool = False) -> float:
    event = asyncio.Event()
    if hurry:
        event.set()
    start = time.monotonic()
    await supervisor.stop(event)
    return time.monotonic() - start


async def test_who_dies_is_started_again(tmp_path: Path) -> None:
    async with supervised(spec(tmp_path, "a", FOREVER)) as (supervisor, reports):
        child = supervisor.children["a"]
        first = child.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: child.pid not in (None, first), supervisor.keep_running)

        assert child.num_starts == 2
        assert len(reports) == 1
        assert "a was killed by SIGKILL; starting it again in 0.25 s" in reports[0]


@pytest.mark.parametrize(("end", "is_said"), [("os.kill(os.getpid(), 15)", False), (KILL, True)])
async def test_a_kill_during_the_start_may_be_for_memory(
    tmp_path: Path, end: str, is_said: bool
) -> None:
    async with supervised(spec(tmp_path, "a", f"import os; {UP}; {end}")) as (supervisor, _):
        with pytest.raises(ChildExitedError, match="a was killed by SIG") as raised:
            await until(lambda: False, supervisor.check_start)

    assert ("runs out of memory" in str(raised.value)) == is_said
    assert ("PAGODA_DECODE_KV_CACHE_BYTES" in str(raised.value)) == is_said


async def test_a_folder_of_logs_that_is_gone_is_made_again(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    async with supervised(spec(logs, "a", FOREVER)) as (supervisor, _):
        child = supervisor.children["a"]
        shutil.rmtree(logs)
        os.kill(child.pid, signal.SIGKILL)
        await until(lambda: child.num_starts == 2, supervisor.keep_running)

        assert logs.is_dir()
        assert child.is_running


async def test_a_start_that_fails_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may be out of processes for a moment; meanwhile the others are looked after."""
    specs = [spec(tmp_path, name, FOREVER) for name in "ab"]
    async with supervised(*specs) as (supervisor, reports):
        a, b = supervisor.children.values()
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", no_process)
            for child in (a, b):
                os.kill(child.pid, signal.SIGKILL)
            await until(lambda: a.num_starts > 1 and b.num_starts > 1, supervisor.keep_running)
        await until(lambda: a.is_running and b.is_running, supervisor.keep_running)

    cause = os.strerror(errno.EAGAIN)
    failures = [report for report in reports if cause in report]
    assert len(failures) == len(reports) - 2 >= 2
    for child in (a, b):  # whichever is found dead first
        first = next(report for report in failures if report.startswith(child.spec.name))
        assert f"could not be started ([Errno {errno.EAGAIN}] {cause});" in first
        assert "starting it again in 0.5 s" in first
        assert first.endswith(f"({child.spec.log})")


def no_process(*_: object, **__: object) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


async def test_a_first_start_that_fails_names_the_process_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.log").mkdir()
    supervisor = Supervisor([spec(tmp_path, "a", FOREVER)], report=print)
    with pytest.raises(ChildNotStartedError, match=r"cannot start a \(.*a.log.*can be written"):
        supervisor.start()


async def test_an_early_end_during_the_start_shows_its_log(tmp_path: Path) -> None:
    script = "print('up'); print('out of luck', flush=True); raise SystemExit(3)"
    async with supervised(spec(tmp_path, "a", script)) as (supervisor, _):
        with pytest.raises(ChildExitedError) as raised:
            await until(lambda: False, supervisor.check_start)

    assert "a exited with code 3" in str(raised.value)
    assert "out of luck" in str(raised.value)


async def test_stop_ends_everybody_and_their_children(tmp_path: Path) -> None:
    specs = [spec(tmp_path, "a", LEAVES_CHILD), spec(tmp_path, "b", FOREVER, stage=1)]
    async with supervised(*specs) as (supervisor, _):
        parents = [psutil.Process(child.pid) for child in supervisor.children.values()]
        everybody = [*parents, *parents[0].children(recursive=True)]
        assert len(everybody) == 3
        await stop(supervisor)

        await until(lambda: not any(is_alive(process) for process in everybody))


async def test_who_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async with supervised(spec(tmp_path, "a", STUBBORN), seconds=0.2) as (supervisor, _):
        seconds = await stop(supervisor)

        assert not supervisor.children["a"].is_running
        assert 0.2 <= seconds < 60


async def test_who_was_told_to_take_its_time_has_it(tmp_path: Path) -> None:
    told = replace(spec(tmp_path, "a", STUBBORN), stop_seconds=0.3)
    async with supervised(told, spec(tmp_path, "b", STUBBORN), seconds=0.1) as (supervisor, _):
        assert await stop(supervisor) >= 0.4


async def test_hurry_kills_at_once(tmp_path: Path) -> None:
    async with supervised(spec(tmp_path, "a", STUBBORN), seconds=600) as (supervisor, _):
        assert await stop(supervisor, hurry=True) < 60


async def test_stages_stop_one_after_the_other(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    script = f"""
import signal, sys, time
def end(*_):
    time.sleep(0.1)
    with open({str(ended)!r}, 'a') as file: file.write(sys.argv[-1])
    sys.exit()
signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)
"""
    specs = [
        spec(tmp_path, "b", script.replace("sys.argv[-1]", "'b'"), stage=1),
        spec(tmp_path, "a", script.replace("sys.argv[-1]", "'a'"), stage=0),
    ]
    async with supervised(*specs) as (supervisor, _):
        await stop(supervisor)

    assert ended.read_text() == "ab"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_nobody_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, sys
from pathlib import Path
from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.supervisor import Supervisor
specs = [ChildSpec(n, (sys.executable, "-S", "-c", {STUBBORN!r}), dict(os.environ),
                   Path({str(tmp_path)!r}) / n) for n in "ab"]
supervisor = Supervisor(specs, report=print)
supervisor.start()
print(*(child.pid for child in supervisor.children.values()), flush=True)
asyncio.run(supervisor.run(asyncio.Event()))
"""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    process.kill()
    process.communicate()

    deadline = time.monotonic() + 60
    while any(is_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [is_alive(child) for child in children] == [False, False]


async def test_run_sees_a_child_end_and_is_told_to_stop(tmp_path: Path) -> None:
    async with supervised(spec(tmp_path, "a", FOREVER)) as (supervisor, reports):
        stop, child = asyncio.Event(), supervisor.children["a"]
        running = asyncio.create_task(supervisor.run(stop))
        await asyncio.sleep(0)
        os.kill(child.pid, signal.SIGKILL)
        await until(lambda: child.num_starts == 2)
        stop.set()
        await asyncio.wait_for(running, 60)

    assert len(reports) == 1
    assert "SIGKILL" in reports[0]
