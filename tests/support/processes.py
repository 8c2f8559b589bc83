"""Processes of a stack, found from outside."""

import time

import httpx
import psutil


def busy_decode_workers(parent_pid: int) -> list[psutil.Process]:
    """The decode processes that generate now, as they say themselves."""
    return [
        process
        for process in psutil.Process(parent_pid).children(recursive=True)
        if "pagoda_decode" in " ".join(process.cmdline()) and _num_running(process) > 0
    ]


def _num_running(process: psutil.Process) -> float:
    port = process.environ()["PAGODA_DECODE_HEALTH_PORT"]
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60, verify=False).text
    lines = [line for line in text.splitlines() if line.startswith("pagoda_num_requests_running")]
    return sum(float(line.split()[-1]) for line in lines)


def kill_a_busy_decode_worker(root_pid: int) -> None:
    """Kill the first decode worker below a process that computes, within a minute."""
    deadline = time.monotonic() + 60
    while not (workers := busy_decode_workers(root_pid)):
        assert time.monotonic() < deadline, "all ended before it could be disturbed"
        time.sleep(0.01)  # a poll of other processes: there is no event to wait on
    workers[0].kill()


def gateway_of(pid: int) -> psutil.Process:
    """Return the gateway of the stack whose process this is."""
    return next(
        process
        for process in psutil.Process(pid).children(recursive=True)
        if "pagoda_gateway" in process.cmdline()
    )
