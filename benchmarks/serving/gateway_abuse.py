"""How long a gateway's event loop is held up by one ill-meaning client, abuse by abuse.

A real gateway with the null worker; while an abuse runs, /healthz and another tenant's requests of
one token are timed on connections of their own. Each abuse has a fresh gateway and a few seconds.

    python benchmarks/serving/gateway_abuse.py [WORD ...]     (only abuses whose name has a WORD)
"""

import argparse
import asyncio
import http.client
import json
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from driving.abuses import ABUSES, Target, names_of
from running.models import model_folder, vocab_size
from running.processes import GatewayAlone, gateway_alone

from pagoda_gateway.accounts.database import open_database
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy

ABUSE_SECONDS = 4.0
PROBE_SECONDS = 20.0
MAX_MODEL_LEN = 131_072
_PROBED = ("p50 ms", "p99 ms", "max ms", "failed")


@dataclass
class Probe:
    """Asks again and again until told to stop; an answer that never came counts as the limit."""

    ask: Callable[[], int]
    pause_seconds: float
    seconds: list[float] = field(default_factory=list)
    num_failed: int = 0

    def run(self, stop: threading.Event) -> None:
        """Measure until `stop`, once at least: some abuses are over at once."""
        is_over = False
        while not is_over:
            started = time.perf_counter()
            try:
                is_good = self.ask() == 200
            except (OSError, http.client.HTTPException):
                is_good = False
            self.seconds.append(time.perf_counter() - started)
            self.num_failed += not is_good
            is_over = stop.wait(self.pause_seconds)

    def text(self) -> str:
        """Return p50, p99 and the longest in ms, and how many failed."""
        values = sorted(1e3 * value for value in self.seconds)
        p99 = values[min(len(values) - 1, int(0.99 * len(values)))]
        return (
            f"{statistics.median(values):.0f} | {p99:.0f} | {values[-1]:.0f} | "
            f"{self.num_failed}/{len(values)}"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only abuses whose names have one of these")
    words = parser.parse_args().words
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    columns = ["abuse", "its answers", *_PROBED, *(f"other tenant {name}" for name in _PROBED)]
    columns += ["peak RSS MB", "traces MB"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in names_of(words):
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {_measure(name, Path(folder))} |", flush=True)


def _measure(name: str, home: Path) -> str:
    model = model_folder("demo", home)
    other = asyncio.run(_other_tenant(home))
    with gateway_alone(
        home,
        model=model,
        step_ms=5.0,
        vocab=vocab_size(model),
        max_model_len=MAX_MODEL_LEN,
        trace_dir=home / "traces",
    ) as alone:
        address = urlsplit(alone.endpoint.base_url)
        target = Target(
            address.hostname or "", address.port or 0, alone.endpoint.api_key, alone.endpoint.model
        )
        probes = [Probe(_healthz(target), 0.01), Probe(_good_request(target, other), 0.05)]
        stop = threading.Event()
        threads = [threading.Thread(target=probe.run, args=(stop,)) for probe in probes]
        for thread in threads:
            thread.start()
        outcomes = ABUSES[name](target, ABUSE_SECONDS)
        stop.set()
        for thread in threads:
            thread.join()
        answers = ", ".join(f"{count} x {what}" for what, count in outcomes.items()) or "-"
        traces = sum(p.stat().st_size for p in (home / "traces").glob("*"))
        return (
            f"{answers} | {probes[0].text()} | {probes[1].text()} | "
            f"{_peak_megabytes(alone):.0f} | {traces / 1e6:.1f}"
        )


def _peak_megabytes(alone: GatewayAlone) -> float:
    status = Path(f"/proc/{psutil.Process(alone.gateway_pid).pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def _other_tenant(home: Path) -> str:
    async with open_database(f"sqlite:///{home / 'ledger.sqlite'}") as database:
        _, secret = await Tenancy.of(database).api_keys.ensure("other", "benchmark")
        return secret


def _healthz(target: Target) -> Callable[[], int]:
    return lambda: _ask(target, "GET", "/healthz", None, "")


def _good_request(target: Target, key: str) -> Callable[[], int]:
    body = json.dumps({"model": target.model, "prompt": "hello", "max_tokens": 1}).encode()
    return lambda: _ask(target, "POST", "/v1/completions", body, key)


def _ask(target: Target, method: str, path: str, body: bytes | None, key: str) -> int:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=PROBE_SECONDS)
    try:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


if __name__ == "__main__":
    main()
