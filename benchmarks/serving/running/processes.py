"""Processes of the standard set: whole stacks, a gateway alone, baselines. All die with the block.

Everything listens on free loopback ports and keeps its data in a folder of its own, so that a stack
that already runs on this machine is not touched.
"""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from dotenv import dotenv_values

from pagoda_cli.endpoint import Endpoint
from pagoda_cli.up.ports import pick_port
from pagoda_runtime.configuration.settings import CommonSettings, load_settings

BIN = Path(sys.executable).parent
SERVING = Path(__file__).parents[1]
START_SECONDS = 120.0
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack."""

    topology: str
    endpoint: Endpoint
    pid: int

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        return cpu_seconds(self.pid)


@contextlib.contextmanager
def running_stack(
    home: Path,
    *,
    model: Path,
    topology: str,
    dtype: str,
    num_threads: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Stack]:
    """Start `pagoda up` and yield once the model is served.

    Each worker has `num_threads`; 0: they share the processors.
    """
    port = pick_port()
    variables = {
        "PAGODA_HOME": str(home),
        "PAGODA_HTTP_PORT": str(port),
        "PAGODA_MODEL": str(model),
        "PAGODA_MODEL_NAME": "bench",
        "PAGODA_DTYPE": dtype,
        "PAGODA_TOPOLOGY": topology,
        "PAGODA_PREFILL_NUM_THREADS": str(num_threads),
        "PAGODA_DECODE_NUM_THREADS": str(num_threads),
        "OMP_NUM_THREADS": str(num_threads) if num_threads else "",
        **(settings or {}),
    }
    with started(home / "up.log", [str(BIN / "pagoda"), "up"], variables) as process:
        env_file = home / "env"
        wait_until(env_file.is_file, process, home / "up.log")
        key = dotenv_values(env_file)["OPENAI_API_KEY"] or ""
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", key, "bench")
        wait_until(lambda: serves(endpoint), process, home / "up.log")
        yield Stack(topology, endpoint, process.pid)


@dataclass(frozen=True, slots=True)
class GatewayAlone:
    """A gateway whose only worker computes nothing."""

    endpoint: Endpoint
    bus: CommonSettings  # how to reach its NATS
    gateway_pid: int
    nats_pid: int
    null_worker: "subprocess.Popen[str]"

    def stop_worker(self) -> dict[str, Any]:
        """Stop the null worker and return what it counted."""
        self.null_worker.terminate()
        output, _ = self.null_worker.communicate(timeout=STOP_SECONDS)
        counts: dict[str, Any] = json.loads(output.splitlines()[-1])
        return counts


@contextlib.contextmanager
def gateway_alone(
    home: Path,
    *,
    model: Path,
    step_ms: float,
    vocab: int,
    max_model_len: int = 1 << 20,
    trace_dir: Path | None = None,
    first_at_once: bool = False,
    further: Mapping[str, str] | None = None,
    has_applier: bool = False,
) -> Iterator[GatewayAlone]:
    """Start NATS, a gateway and the null worker; no router, no Redis, no engine.

    `further`: settings of the gateway. `has_applier`: what is used comes to the ledger; until then
    nobody with a budget is let in.
    """
    home.mkdir(parents=True, exist_ok=True)
    nats_port, port, token = pick_port(), pick_port(), secrets.token_hex(8)
    key = f"sk-pagoda-{secrets.token_hex(16)}"
    variables = {
        "PAGODA_HOME": str(home),
        "PAGODA_HTTP_PORT": str(port),
        "PAGODA_MODEL": str(model),
        "PAGODA_MODEL_NAME": "bench",
        "PAGODA_NATS_URL": f"nats://127.0.0.1:{nats_port}",
        "PAGODA_NATS_TOKEN": token,
        "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": key,
    }
    if trace_dir is not None:
        variables["PAGODA_TRACE_DIR"] = str(trace_dir)
    nats = [str(BIN / "nats-server"), "-js", "-a", "127.0.0.1", "-p", str(nats_port)]
    nats += ["-sd", str(home / "jetstream"), "--auth", token]
    python = str(BIN / "python")
    worker = [python, str(SERVING / "null_worker.py"), "--model", "bench"]
    worker += ["--step-ms", str(step_ms), "--vocab-size", str(vocab)]
    worker += ["--max-model-len", str(max_model_len)]
    worker += ["--first-at-once"] if first_at_once else []
    with contextlib.ExitStack() as stack:
        nats_process = stack.enter_context(started(home / "nats.log", nats, {}))
        wait_until(lambda: listens(nats_port), nats_process, home / "nats.log")
        of_gateway = variables | dict(further or {})
        gateway = stack.enter_context(
            started(home / "gateway.log", [python, "-m", "pagoda_gateway"], of_gateway)
        )
        if has_applier:
            command = [python, "-m", "pagoda_gateway.accounts.usage.applier"]
            stack.enter_context(started(home / "applier.log", command, of_gateway))
        null_worker = stack.enter_context(
            started(home / "worker.log", worker, variables, has_output=True)
        )
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", key, "bench")
        wait_until(lambda: serves(endpoint), gateway, home / "gateway.log")
        bus = load_settings(CommonSettings, variables)
        yield GatewayAlone(endpoint, bus, gateway.pid, nats_process.pid, null_worker)


class Baseline:
    """A process that answers one JSON line with one JSON line."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log
        self.hello = self._read()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to `question`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the baseline ended:\n{self._log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def transformers_baseline(
    home: Path, *, model: Path, num_threads: int, dtype: str
) -> Iterator[Baseline]:
    """Start the transformers process and yield once the model is loaded."""
    command = [str(BIN / "python"), str(SERVING / "baselines" / "transformers_baseline.py")]
    command += ["--model", str(model), "--dtype", dtype, "--threads", str(num_threads)]
    log = home / "transformers.log"
    with started(log, command, {"OMP_NUM_THREADS": str(num_threads)}, has_output=True) as process:
        yield Baseline(process, log)


def memory_bandwidth(num_threads: int) -> dict[str, Any]:
    """Measure in a process of its own, so that its threads are its own."""
    command = [str(BIN / "python"), str(SERVING / "baselines" / "memory_bandwidth.py")]
    environ = {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
    done = subprocess.run(
        [*command, "--threads", str(num_threads)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextlib.contextmanager
def started(
    log: Path, command: list[str], variables: Mapping[str, str], *, has_output: bool = False
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process, its output in `log` (or on pipes); end it with its children."""
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PAGODA_", "OPENAI_"))}
    pipe = subprocess.PIPE if has_output else None
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            env={**inherited, **variables},
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or file,
            stderr=file,
            text=True,
        )
    try:
        yield process
    finally:
        children = _children(process.pid)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        for orphan in children:
            with contextlib.suppress(psutil.Error):
                orphan.kill()
        if process.poll() is None:
            process.kill()
        process.communicate()


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its living descendants so far."""
    total = 0.0
    for process in [psutil.Process(pid), *_children(pid)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def memory_bytes(pid: int) -> int:
    """Memory of a process and its living descendants; what they share is counted once."""
    total = 0
    for process in [psutil.Process(pid), *_children(pid)]:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def wait_until(
    is_true: Callable[[], bool],
    process: "subprocess.Popen[str]",
    log: Path,
    *,
    seconds: float = START_SECONDS,
) -> None:
    """Poll until `is_true()`.

    Raises:
        RuntimeError: the process ended or the time is up; holds the end of its log.
    """
    deadline = time.monotonic() + seconds
    while not is_true():
        if process.poll() is not None or time.monotonic() > deadline:
            state = f"ended with {process.returncode}" if process.poll() is not None else "is late"
            raise RuntimeError(f"{process.args!r} {state}:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def serves(endpoint: Endpoint) -> bool:
    """Whether the endpoint generates one token now."""
    body = {"model": endpoint.model, "prompt": "a", "max_tokens": 1}
    request = urllib.request.Request(
        f"{endpoint.base_url}/completions", json.dumps(body).encode(), endpoint.headers
    )
    try:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def listens(port: int) -> bool:
    """Whether somebody listens on the loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []
