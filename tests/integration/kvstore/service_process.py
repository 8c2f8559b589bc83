"""One service of the platform as its own process, for tests."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
from support.servers import free_port

from pagoda_runtime.configuration.settings import CommonSettings

START_SECONDS = 90.0
STOP_SECONDS = 60.0


class ServiceProcess:
    """`python -m pagoda.<service>` with its own settings; `start` again after `stop` or `kill`."""

    def __init__(
        self, service: str, common: CommonSettings, environ: Mapping[str, str], log: Path
    ) -> None:
        self.health_url = f"http://127.0.0.1:{(port := free_port())}"
        self._command = [sys.executable, "-m", f"pagoda_{service}"]
        self._log = log
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PAGODA_")},
            "PYTHONFAULTHANDLER": "1",  # what hangs says where, see `stop`
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PAGODA_HOME": str(common.home),
            "PAGODA_NATS_URL": common.nats_url,
            "PAGODA_NATS_TOKEN": common.nats_token.get_secret_value(),
            "PAGODA_REDIS_URL": common.redis_url,
            "PAGODA_CLUSTER_TOKEN": common.cluster_token.get_secret_value(),
            f"PAGODA_{service.upper()}_HEALTH_PORT": str(port),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environ, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self._command} is not ready:\n{self._log.read_text()}")
            time.sleep(0.02)  # a poll of another process: there is no event to wait on

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (
                httpx.get(f"{self.health_url}/readyz", timeout=60, verify=False).status_code == 200
            )
        return False

    def metrics(self) -> str:
        return httpx.get(f"{self.health_url}/metrics", timeout=60, verify=False).text

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(STOP_SECONDS)
            raise AssertionError(f"{self._command} goes on:\n{self._log.read_text()}") from None
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None


@contextlib.contextmanager
def running_service(
    service: str, common: CommonSettings, environ: Mapping[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """Start a service, yield it once it is ready, stop it."""
    common.home.mkdir(parents=True, exist_ok=True)
    process = ServiceProcess(service, common, environ or {}, common.home / f"{service}.log")
    try:
        process.start()
        yield process
    finally:
        if process.is_running:
            process.stop(signal.SIGKILL)
