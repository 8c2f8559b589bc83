"""Services as real processes: signals, exit codes, health, what they print."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers import free_port, nats_server
from support.span_files import read_spans

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PREAMBLE = """
import asyncio, sys
from pagoda_runtime.process.service import ServiceContext, load_or_exit, run_service
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.errors import BusConnectError
common = load_or_exit(CommonSettings)
"""
EPILOGUE = """
sys.exit(run_service("router", common, main, health_port=int(sys.argv[1])))
"""


@contextlib.contextmanager
def running(body: str, port: int = 0, **variables: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + body + EPILOGUE, str(port)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def get_when_up(port: int, path: str) -> tuple[int, bytes]:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:
            assert time.monotonic() < deadline, "the service did not come up"
            time.sleep(0.02)


def test_sigterm_drains_and_exits_with_zero() -> None:
    body = """
async def main(ctx):
    ctx.tasks.create_task(asyncio.Event().wait())
    ctx.health.set_ready("work", True)
    print("up", flush=True)
    await ctx.stop.wait()
    print("ready" if ctx.health.is_ready else "not ready", flush=True)
"""
    port = free_port()
    with running(body, port) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert get_when_up(port, "/readyz")[0] == 200
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=60)

    assert (process.returncode, output) == (0, "not ready\n")
    assert all(json.loads(line)["service"] == "router" for line in log.splitlines())


def test_sigterm_ends_a_start_that_waits() -> None:
    body = """
async def connect():
    print("waiting", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("closed", flush=True)
async def main(ctx):
    await ctx.unless_stopped(connect())
    print("started", flush=True)
"""
    with running(body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=60)

    assert (process.returncode, output) == (0, "closed\n")
    assert "ERROR" not in log


def test_a_thread_that_goes_on_does_not_hold_up_the_end() -> None:
    """As one that looks a name up does, where no name server answers."""
    body = """
import threading, time
async def main(ctx):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    threading.Thread(target=time.sleep, args=[3600]).start()
    print("up", flush=True)
    await ctx.stop.wait()
    print("what is printed last")
"""
    with running(body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)

    assert (process.returncode, output) == (0, "what is printed last\n")


def test_a_start_that_notices_sigterm_itself_is_no_failure() -> None:
    body = """
from pagoda_runtime.process.service import StoppedError
async def main(ctx):
    async def load():
        print("loading", flush=True)
        await ctx.stop.wait()
        raise StoppedError
    await ctx.unless_stopped(load())
"""
    with running(body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "ERROR" not in log


def test_sigterm_ends_a_start_that_waits_for_nats() -> None:
    body = """
async def main(ctx):
    print("waiting", flush=True)
    async with ctx.bus("router-1"):
        print("connected", flush=True)
"""
    with running(body, PAGODA_NATS_URL="nats://127.0.0.1:1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)

    assert (process.returncode, output) == (0, "")


def test_a_failing_background_task_ends_the_service() -> None:
    body = """
async def fail():
    raise ValueError("broken beyond repair")
async def main(ctx):
    ctx.tasks.create_task(fail())
    await ctx.stop.wait()
"""
    with running(body) as process:
        _, log = process.communicate(timeout=60)

    assert process.returncode == 1
    (line,) = [json.loads(line) for line in log.splitlines() if "ERROR" in line]
    assert "broken beyond repair" in line["message"]
    assert "Traceback" in line["error"]


def test_an_error_of_ours_needs_no_traceback() -> None:
    body = """
async def main(ctx):
    raise BusConnectError("nats://me:secret@127.0.0.1:1", 30, "refused")
"""
    with running(body, PAGODA_LOG_FORMAT="console") as process:
        _, log = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "no connection to NATS at nats://127.0.0.1:1 within" in log
    assert "Traceback" not in log


def test_unusable_settings_exit_with_two() -> None:
    with running("main = None", PAGODA_HTP_PORT="1") as process:
        _, log = process.communicate(timeout=60)

    assert process.returncode == 2
    assert "did you mean PAGODA_HTTP_PORT?" in log
    assert "Traceback" not in log


def test_spans_are_written_at_the_end(tmp_path: Path) -> None:
    body = """
from pagoda_runtime.telemetry.tracing import tracer
async def main(ctx):
    with tracer().start_as_current_span("router.route"):
        pass
"""
    with running(body, PAGODA_TRACE_DIR=str(tmp_path)) as process:
        process.communicate(timeout=60)

    (span,) = read_spans(tmp_path)
    assert span["name"] == "router.route"
    assert process.returncode == 0


def test_a_service_that_lost_nats_is_not_ready_and_says_so(tmp_path: Path) -> None:
    body = """
async def main(ctx):
    async with ctx.bus("router-1"):
        ctx.health.set_ready("work", True)
        await ctx.stop.wait()
"""
    port = free_port()
    with nats_server(tmp_path) as nats:
        variables = {"PAGODA_NATS_URL": nats.url, "PAGODA_NATS_TOKEN": nats.secret}
        with running(body, port, **variables) as process:
            assert answer_once(port, 200)["components"]["nats"]["ready"]
            nats.stop(kill=True)
            lost = answer_once(port, 503)["components"]["nats"]
            nats.start()
            answer_once(port, 200)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)

    assert not lost["ready"]
    assert lost["detail"].startswith("no connection for ")


def answer_once(port: int, wanted: int) -> dict[str, Any]:
    """What /readyz answers as soon as its status is the wanted one."""
    deadline = time.monotonic() + 60
    while True:
        status, body = get_when_up(port, "/readyz")
        if status == wanted:
            report: dict[str, Any] = json.loads(body)
            return report
        assert time.monotonic() < deadline, body
        time.sleep(0.02)


WAITS = """
async def main(ctx):
    print("up", flush=True)
    await ctx.stop.wait()
"""


def log_of_failed_start(port: int, **variables: str) -> str:
    with running(WAITS, port, **variables) as process:
        output, log = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    (line,) = log.splitlines()
    message = json.loads(line)["message"]
    assert "error" not in json.loads(line), "a traceback"
    assert message.startswith("router cannot go on: ")
    return str(message)


def test_a_health_port_in_use_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        message = log_of_failed_start(port)
    assert f"cannot listen on 127.0.0.1:{port} for /healthz" in message
    assert "(Address already in use)" in message
    assert "_HEALTH_PORT" in message


def test_a_folder_of_spans_that_cannot_be_made_is_said_in_one_line() -> None:
    message = log_of_failed_start(0, PAGODA_TRACE_DIR="/proc/nowhere")
    assert "cannot use the folder /proc/nowhere (No such file or directory)" in message
    assert "set PAGODA_TRACE_DIR" in message
