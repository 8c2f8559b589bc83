"""What a gateway adds to an engine: to the first token, to each token, in CPU and in memory.

    python benchmarks/serving/gateway_cost.py                            # 1, 64, 512, 2048 streams
    python benchmarks/serving/gateway_cost.py --streams 512 --minutes 10   # memory over time
    python benchmarks/serving/gateway_cost.py --stages                     # of a first token

The engine computes nothing (`null_worker.py`); its first token comes at once, the others at even
steps, slow enough that one core carries all streams. The gateway has a core of its own; NATS, the
null worker and the client share the others. TTFT is compared with a client that asks the same
worker over the bus (route, generate, first frame), in turn with the gateway's and from its core:
what it costs to reach NATS on another one is in both. A token's delay is from its frame on the bus,
heard by the client's own process, to its event at the same client. CPU is that of the gateway's
process, its threads included: of a request whose answer is a single token, of a token with its part
of a request, and of a further token by itself.

Where memory of whoever idles is taken from him, as some virtual machines do, a single stream pays
for that between its tokens: what the first touch of a page costs then is printed before.
"""

import argparse
import contextlib
import itertools
import json
import mmap
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import uvloop
from driving.stream_client import (
    BusClient,
    FrameWatch,
    StreamLoad,
    Times,
    through_gateway,
    token_times,
)
from null_worker import FIRST_TOKEN_ID
from running.processes import GatewayAlone, cpu_seconds, gateway_alone

from pagoda.rpc.v1.generate_pb2 import FramesMessage
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

TOKENS_PER_SECOND = 8000  # of all streams together
MOST_TOKENS = 128
LEAST_STEP_SECONDS = 0.01
PLACES = 2  # of the gateway for each stream: a tenant has four fifths, accounts are settled later
PROMPT = list(range(300, 556))
VOCAB = 2048
SAMPLE_SECONDS = 10.0
SHORT_REQUESTS = 300  # of one token each: CPU clocks tick every 10 ms, and these take half a second
MIB = 1 << 20
COLD_SECONDS = (0.01, 0.1, 1.0)  # without a touch


def step_seconds(num_streams: int) -> float:
    """Return the time between two tokens of a stream."""
    return max(LEAST_STEP_SECONDS, num_streams / TOKENS_PER_SECOND)


def load_of(num_streams: int, seconds: float) -> StreamLoad:
    """Return about `seconds` of load, or up to thrice as much: it begins, and ends, slowly.

    At least 100 requests, and two of each stream. An answer has 128 tokens, but less where a single
    stream would take too long for 100 requests, or many streams for two.
    """
    step = step_seconds(num_streams)
    rounds = max(2, -(-100 // num_streams), round(seconds / (MOST_TOKENS * step)))
    num_tokens = int(seconds / (rounds * step)) if num_streams == 1 else round(seconds / step)
    num_tokens = min(MOST_TOKENS, max(8, num_tokens))
    return StreamLoad(num_streams, rounds * num_streams, num_tokens, num_tokens * step)


@contextlib.contextmanager
def gateway_apart(
    model: Path, num_streams: int, *, trace_dir: Path | None = None
) -> Iterator[GatewayAlone]:
    """Start a gateway and a null worker for so many streams; the gateway has a core to itself."""
    with (
        tempfile.TemporaryDirectory() as home,
        gateway_alone(
            Path(home), model=model, step_ms=1e3 * step_seconds(num_streams), vocab=VOCAB,
            first_at_once=True, trace_dir=trace_dir,
            further={"PAGODA_GATEWAY_MAX_REQUESTS_IN_FLIGHT": str(PLACES * max(512, num_streams))},
        ) as alone,
    ):  # fmt: skip
        apart([alone.gateway_pid], [alone.nats_pid, alone.null_worker.pid])
        yield alone


def quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return 1e3 * statistics.median(ordered), 1e3 * p99


def chars_of_tokens(model: Path, num_tokens: int) -> list[int]:
    """Return how many characters an answer of the null worker has after each token."""
    detokenizer = ModelTokenizer.load(model).detokenizer([], skip_special_tokens=True)
    texts = [
        detokenizer.push(FIRST_TOKEN_ID + i % (VOCAB - FIRST_TOKEN_ID)) for i in range(num_tokens)
    ]
    return list(itertools.accumulate(map(len, texts)))


async def once(
    alone: GatewayAlone, load: StreamLoad, num_chars: list[int], *, is_direct: bool
) -> tuple[Times, list[float]]:
    """Run the load once; return its times and, through the gateway, each token's delay."""
    async with Bus.connect(alone.bus, name="bench") as bus:
        if is_direct:
            return await BusClient(bus, model=alone.endpoint.model).run(PROMPT, load), []
        watch = FrameWatch()
        subscription = await bus.subscribe(subjects.frames("*"), FramesMessage, watch.on_frames)
        times = await through_gateway(alone.endpoint, PROMPT, load)
        await subscription.unsubscribe()
    delays: list[float] = []
    for answer in times.answers:
        events = answer.events()
        times.ttft.append(events[0][0] - answer.started)
        framed = watch.arrivals[events[0][1]["id"].partition("-")[2]]
        arrived = token_times(events, num_chars)
        delays += [b - a for a, b in zip(framed, arrived, strict=False)]
    return times, delays


def measure(model: Path, num_streams: int, *, seconds: float, repeats: int) -> dict[str, object]:
    """Return the row of one number of streams."""
    load = load_of(num_streams, seconds)
    num_chars = chars_of_tokens(model, load.num_tokens)
    direct: list[float] = []
    through: list[float] = []
    delays: list[float] = []
    num_tokens, num_failed, cpu, loads = 0, 0, 0.0, []
    with gateway_apart(model, num_streams) as alone:
        for _ in range(repeats):
            with in_place_of(alone.gateway_pid):
                direct += uvloop.run(once(alone, load, num_chars, is_direct=True))[0].ttft
            started, before = time.perf_counter(), cpu_seconds(alone.gateway_pid)
            times, new_delays = uvloop.run(once(alone, load, num_chars, is_direct=False))
            used = cpu_seconds(alone.gateway_pid) - before
            loads.append(used / (time.perf_counter() - started))
            cpu += used
            through += times.ttft
            delays += new_delays
            num_tokens += len(times.answers) * load.num_tokens
            num_failed += times.num_failed
        request_seconds = cpu_per_request(alone, num_streams)
    gateway, engine, token = quantiles(through), quantiles(direct), quantiles(delays)
    num_requests = num_tokens // load.num_tokens
    further_seconds = (cpu - num_requests * request_seconds) / (num_tokens - num_requests)
    return {
        "streams": num_streams,
        "step_ms": round(1e3 * step_seconds(num_streams), 1),
        "requests": repeats * load.num_requests,
        "tokens_each": load.num_tokens,
        "failed": num_failed,
        "ttft_ms": [round(value, 2) for value in gateway],
        "ttft_direct_ms": [round(value, 2) for value in engine],
        "added_ttft_ms": [round(a - b, 2) for a, b in zip(gateway, engine, strict=True)],
        "token_delay_ms": [round(value, 2) for value in token],
        "cpu_us_per_request": round(1e6 * request_seconds),
        "cpu_us_per_token": round(1e6 * cpu / num_tokens, 1),
        "cpu_us_per_further_token": round(1e6 * further_seconds, 1),
        "core_used": round(statistics.mean(loads), 2),
    }


def cpu_per_request(alone: GatewayAlone, num_streams: int) -> float:
    """Return the CPU seconds of a request whose answer is a single token."""
    num_requests = max(SHORT_REQUESTS, 2 * num_streams)
    load = StreamLoad(num_streams, num_requests, 1, step_seconds(num_streams))
    before = cpu_seconds(alone.gateway_pid)
    uvloop.run(through_gateway(alone.endpoint, PROMPT, load))
    return (cpu_seconds(alone.gateway_pid) - before) / num_requests


def measure_stages(model: Path) -> dict[str, object]:
    """Return p50 and p99 of the stages of a first token, one request at a time, by its spans."""
    with tempfile.TemporaryDirectory() as home:
        with gateway_apart(model, 1, trace_dir=Path(home)) as alone:
            load = StreamLoad(1, SHORT_REQUESTS, 1, LEAST_STEP_SECONDS)
            uvloop.run(through_gateway(alone.endpoint, PROMPT, load))
        stages = stages_of(spans_in(Path(home)))
    return {"stages_ms": {n: [round(v, 2) for v in quantiles(s)] for n, s in stages.items()}}


def stages_of(spans: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Return each request's seconds in the stages up to its first token.

    `rest` has what no span names: the open record, the worker's admission, the frame's way back.
    """
    traces: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for span in spans:
        traces[span["traceId"]][span["name"]] = span
    stages: defaultdict[str, list[float]] = defaultdict(list)
    for named in traces.values():
        request = named["gateway.request"]
        if not request.get("events"):  # of the stack's start: no worker was there yet
            continue
        (route,) = request["events"]
        seconds = {name: span_seconds(named[f"gateway.{name}"]) for name in ("admit", "tokenize")}
        seconds["route"] = number(route, "pagoda.route.milliseconds") / 1e3
        seconds["rest"] = number(request, "pagoda.ttft_ms") / 1e3 - sum(seconds.values())
        for name, value in seconds.items():
            stages[name].append(value)
    return stages


def spans_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the spans of a folder of span files."""
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    yield from scope["spans"]


def span_seconds(span: dict[str, Any]) -> float:
    """Return how long a span took."""
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


def number(owner: dict[str, Any], name: str) -> float:
    """Return an attribute of a span or an event."""
    return next(float(a["value"]["doubleValue"]) for a in owner["attributes"] if a["key"] == name)


def watch_memory(model: Path, num_streams: int, minutes: float) -> None:
    """Print the gateway's private memory every few seconds, under steady streams."""
    load = load_of(num_streams, SAMPLE_SECONDS)
    with gateway_apart(model, num_streams) as alone:
        started = time.monotonic()
        while time.monotonic() - started < 60 * minutes:
            uvloop.run(through_gateway(alone.endpoint, PROMPT, load))
            size = psutil.Process(alone.gateway_pid).memory_full_info().uss / MIB
            print(f"{time.monotonic() - started:5.0f} s  {size:.1f} MiB", flush=True)


def apart(gateway_pids: Iterable[int], other_pids: Iterable[int]) -> None:
    """Give gateways the last core, and all others to everything else, this process included."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    os.sched_setaffinity(0, cores[:-1])
    for pids, own in ((gateway_pids, cores[-1:]), (other_pids, cores[:-1])):
        for pid in pids:
            for thread in psutil.Process(pid).threads():
                os.sched_setaffinity(thread.id, own)


@contextlib.contextmanager
def in_place_of(pid: int) -> Iterator[None]:
    """Have this process run where another one does, which is idle."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, os.sched_getaffinity(pid))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def cold_page_us(seconds: float, *, num_pages: int = 4096, repeats: int = 3) -> float:
    """Return what the first touch of a page costs that had none for so long, in microseconds."""
    pages = memoryview(bytearray(num_pages * mmap.PAGESIZE))[:: mmap.PAGESIZE]
    bytes(pages)
    taken = []
    for _ in range(repeats):
        time.sleep(seconds)
        started = time.perf_counter()
        bytes(pages)
        taken.append(time.perf_counter() - started)
    return 1e6 * statistics.median(taken) / num_pages


def main() -> None:
    """Measure and print, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("demo/model"), help="for its tokenizer")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 64, 512, 2048])
    parser.add_argument("--seconds", type=float, default=8.0, help="of one run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stages", action="store_true", help="of a first token, by its spans")
    parser.add_argument("--minutes", type=float, default=0.0, help="watch memory for so long")
    arguments = parser.parse_args()
    cores = os.sched_getaffinity(0)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    cold = ", ".join(f"{cold_page_us(each):.2f} us after {each:g} s" for each in COLD_SECONDS)
    print(f"a page that was not touched costs {cold}", flush=True)
    if arguments.stages:
        print(json.dumps(measure_stages(arguments.model)), flush=True)
        return
    for num_streams in arguments.streams:
        os.sched_setaffinity(0, cores)
        if arguments.minutes:
            watch_memory(arguments.model, num_streams, arguments.minutes)
            continue
        row = measure(
            arguments.model, num_streams, seconds=arguments.seconds, repeats=arguments.repeats
        )
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
