"""The whole system for end-to-end tests: `pagoda up` as a user starts it, in a home of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from support.servers import free_port

PAGODA = Path(sys.executable).with_name("pagoda")
START_SECONDS = 240.0


@dataclass(slots=True)
class Stack:
    """A running stack and how to reach it."""

    process: subprocess.Popen[str]
    home: Path
    url: str
    api_key: str
    model: str
    health_ports: dict[str, int]
    ready_lines: list[str] = field(default_factory=list)
    _clients: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def openai(self) -> openai.OpenAI:
        """The official client, without retries: a failure must show. `close_clients` closes it."""
        client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.api_key,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(verify=False, timeout=60),
        )
        return self._clients.enter_context(client)

    def http(self) -> httpx.Client:
        """Plain HTTP with the key."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        # No certificates: to read them takes 20 ms of CPU for every client.
        return httpx.Client(base_url=self.url, headers=headers, verify=False, timeout=60)

    def close_clients(self) -> None:
        """Close what `openai` handed out: a test that fails would leave its sockets to the next."""
        self._clients.close()

    def metric(self, service: str, name: str, **labels: str) -> float:
        """Sum of the samples called `name` on a service's /metrics; 0.0 where there is none."""
        url = f"http://127.0.0.1:{self.health_ports[service]}/metrics"
        text = httpx.get(url, timeout=60, verify=False).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def wait_metric(
        self, service: str, name: str, is_reached: Callable[[float], bool], seconds: float
    ) -> float:
        """Poll until the metric is as wanted or time is up; return what it is then."""
        deadline = time.monotonic() + seconds
        while not is_reached(now := self.metric(service, name)) and time.monotonic() < deadline:
            time.sleep(0.02)  # a poll of another process: there is no event to wait on
        return now

    def stop(self, stop_signal: signal.Signals = signal.SIGTERM) -> int:
        """SIGTERM as from a service manager, or SIGINT as from Ctrl-C; return the exit code."""
        self.process.send_signal(stop_signal)
        return self.process.wait(60)


@contextlib.contextmanager
def running_stack(home: Path, environ: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """Start `pagoda up`, yield once its ready line is printed, stop it."""
    port = free_port()
    health_ports = {name: free_port() for name in ("prefill", "decode", "router", "kvstore")}
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PAGODA_")},
        "PAGODA_HOME": str(home),
        "PAGODA_HTTP_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PAGODA_GATEWAY_RECEIPT_WAIT_SECONDS": "30",
        "PAGODA_LOCAL_PREFILL": "off",  # else few prompts, and no blocks, would leave their worker
        **{
            f"PAGODA_{name.upper()}_HEALTH_PORT": str(number)
            for name, number in health_ports.items()
        },
        **(environ or {}),
    }
    home.mkdir(parents=True, exist_ok=True)
    errors = (home / "up.stderr").open("w+")
    process = subprocess.Popen(
        [str(PAGODA), "up"], env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
    )
    try:
        lines = _until_ready(process, home)
        settings = dict(line.split("=", 1) for line in (home / "env").read_text().splitlines())
        stack = Stack(
            process=process,
            home=home,
            url=settings["OPENAI_BASE_URL"].removesuffix("/v1"),
            api_key=settings["OPENAI_API_KEY"],
            model=settings["PAGODA_MODEL_NAME"],
            health_ports={**health_ports, "gateway": port},
            ready_lines=lines,
        )
        try:
            yield stack
        finally:
            stack.close_clients()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
        errors.close()


def _until_ready(process: subprocess.Popen[str], home: Path) -> list[str]:
    """Read stdout up to the curl command behind the ready line."""
    assert process.stdout is not None
    lines: list[str] = []
    timer = _kill_after(process, START_SECONDS)
    try:
        while line := process.stdout.readline():
            lines.append(line.rstrip("\n"))
            if line.startswith("curl "):
                return lines
    finally:
        timer.cancel()
    logs = "\n".join(
        f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted((home / "logs").glob("*"))
    )
    raise AssertionError(
        f"the stack did not start: {lines}\n{(home / 'up.stderr').read_text()}\n{logs}"
    )


def _kill_after(process: subprocess.Popen[str], seconds: float):  # type: ignore[no-untyped-def]
    import threading

    timer = threading.Timer(seconds, process.kill)
    timer.start()
    return timer
