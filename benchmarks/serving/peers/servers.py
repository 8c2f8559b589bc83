"""Servers that are compared, Pagoda's and others': each is started alone, and is a pid."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from running.processes import running_stack, serves, started, wait_until

from pagoda_cli.endpoint import Endpoint
from peers.engines import ENGINES, KV_BYTES, MODEL_NAME, Engine

START_SECONDS = 600.0  # the first start of vLLM compiles
PAGODA = ("aggregated", "disaggregated", "auto")  # auto: disaggregated, prompts where it is best
SERVERS = (*(f"pagoda-{topology}" for topology in PAGODA), *ENGINES)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `pid` is the root of all its processes."""

    name: str
    endpoint: Endpoint
    pid: int
    weights: str = "bf16"
    keep_alive: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that can be started here, into a folder for its logs and data."""

    key: str
    name: str
    start: Callable[[Path], contextlib.AbstractContextManager[Server]]

    @property
    def is_pagoda(self) -> bool:
        """Whether it is ours."""
        return self.key.startswith("pagoda-")


def candidate(
    key: str,
    *,
    home: Path | None,
    model: Path,
    cache: Path,
    threads: int,
    quantization: str = "none",
) -> Candidate:
    """Return the server `key` of SERVERS; converts the model first where it must.

    `quantization`: of all weights, as Pagoda calls it; llama.cpp has its format of that size.

    Raises:
        NotInstalledError: an engine that is not in `home`, or has no such format.
        RuntimeError: its converter failed.
    """
    if key.startswith("pagoda-"):
        topology = key.removeprefix("pagoda-")
        return Candidate(
            key,
            f"Pagoda {topology}",
            lambda folder: running_pagoda(
                folder, model=model, topology=topology, threads=threads, quantization=quantization
            ),
        )
    engine = ENGINES[key](home or Path("PEERS_HOME"), model, cache, threads, quantization)
    return Candidate(key, engine.name, lambda folder: running_engine(engine, folder))


@contextlib.contextmanager
def running_pagoda(
    home: Path, *, model: Path, topology: str, threads: int, quantization: str = "none"
) -> Iterator[Server]:
    """Start `pagoda up`; its workers share `threads` processors, or all that there are."""
    num_workers = 1 if topology == "aggregated" else 2
    is_all = threads == len(os.sched_getaffinity(0))
    settings = {
        "PAGODA_PREFILL_KV_CACHE_BYTES": str(KV_BYTES // num_workers),
        "PAGODA_DECODE_KV_CACHE_BYTES": str(KV_BYTES // num_workers),
        "PAGODA_QUANTIZATION": quantization,
        "PAGODA_LOCAL_PREFILL": "auto" if topology == "auto" else "off",
    }
    with running_stack(
        home,
        model=model,
        topology="aggregated" if topology == "aggregated" else "disaggregated",
        num_threads=0 if is_all else max(1, threads // num_workers),
        dtype="bfloat16",
        settings=settings,
    ) as stack:
        weights = "bf16" if quantization == "none" else quantization
        yield Server(f"Pagoda {topology}", stack.endpoint, stack.pid, weights)


@contextlib.contextmanager
def running_engine(engine: Engine, folder: Path) -> Iterator[Server]:
    """Start an engine and yield once it generates."""
    log = folder / "server.log"
    endpoint = Endpoint(f"http://127.0.0.1:{engine.port}/v1", "", MODEL_NAME)
    with started(log, engine.command, engine.variables) as process:
        wait_until(lambda: serves(endpoint), process, log, seconds=START_SECONDS)
        yield Server(engine.name, endpoint, process.pid, engine.weights, engine.keep_alive)
