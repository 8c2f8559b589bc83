"""What Pagoda's gateway and litellm's add to a streamed chat, beside each other.

    python benchmarks/serving/beside_litellm.py --peers-home ~/peers [--streams 1 16 64]

Behind each is an engine that computes nothing: behind Pagoda `null_worker.py` on NATS, behind
litellm `peers/null_openai.py` on HTTP; both send the first token at once and the others at even
steps. What a gateway adds to the first token is the difference to the same engine asked directly,
over the bus and over HTTP. Pagoda checks a key, tokenises, hashes the prompt for routing, counts
and bills, and writes its usage log to disk; litellm checks its master key, with no database and no
Redis. Each has the last core to itself in its turn, and all else the others.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from driving.stream_client import BusClient, StreamLoad, Times, through_http
from gateway_cost import VOCAB, apart, quantiles
from peers.engines import OFFLINE, NotInstalledError, installed
from running.processes import (
    BIN,
    GatewayAlone,
    cpu_seconds,
    gateway_alone,
    listens,
    started,
    wait_until,
)

from pagoda_cli.endpoint import Endpoint
from pagoda_cli.up.ports import pick_port
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.messaging.bus import Bus

STEP_SECONDS = 0.01
NUM_PROMPT_TOKENS = 256
KEY = "sk-bench-0123456789"
PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Litellm:
    """litellm before an engine that computes nothing."""

    endpoint: Endpoint
    pid: int
    engine: Endpoint
    engine_pid: int


@contextlib.contextmanager
def litellm_alone(home: Path, peers: Path) -> Iterator[Litellm]:
    """Start the engine and one litellm process, as its documentation has it in production."""
    program = installed("litellm", peers / "venv-litellm" / "bin" / "litellm")
    engine_port, port = pick_port(), pick_port()
    engine = Endpoint(f"http://127.0.0.1:{engine_port}/v1", KEY, "bench")
    parameters = {"model": "openai/bench", "api_base": engine.base_url, "api_key": KEY}
    config = {
        "model_list": [{"model_name": "bench", "litellm_params": parameters}],
        "litellm_settings": {"set_verbose": False, "request_timeout": 600},
        "general_settings": {"master_key": KEY},
    }
    (home / "litellm.yaml").write_text(json.dumps(config))  # which is YAML, too
    command = [str(program), "--config", str(home / "litellm.yaml"), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    variables = {
        **OFFLINE, "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    engine_command = [str(BIN / "python"), str(PEERS / "null_openai.py"), "--port"]
    engine_command += [str(engine_port), "--step-ms", str(1e3 * STEP_SECONDS)]
    with (
        started(home / "engine.log", engine_command, {}) as engine_process,
        started(home / "litellm.log", command, variables) as process,
    ):
        wait_until(lambda: listens(engine_port), engine_process, home / "engine.log")
        wait_until(lambda: listens(port), process, home / "litellm.log")
        endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", KEY, "bench")
        yield Litellm(endpoint, process.pid, engine, engine_process.pid)


def prompt_of(model: Path) -> tuple[str, list[int]]:
    """Return a text of so many tokens, and them."""
    tokenizer = ModelTokenizer.load(model)
    words = "the river carries small boats past the old stone bridge and on to the sea "
    token_ids = tokenizer.encode(words * NUM_PROMPT_TOKENS, add_special_tokens=False)
    token_ids = token_ids[:NUM_PROMPT_TOKENS]
    return tokenizer.decode(token_ids, skip_special_tokens=False), token_ids


def ttft_of(times: Times) -> list[float]:
    """Return when each answer's first text was there."""
    found = []
    for answer in times.answers:
        texts = (t for t, event in answer.events() if event["choices"][0]["delta"].get("content"))
        found.append(next(texts) - answer.started)
    return found


async def over_bus(alone: GatewayAlone, prompt: list[int], load: StreamLoad) -> list[float]:
    """Return the first tokens' times of a client that asks Pagoda's engine itself."""
    async with Bus.connect(alone.bus, name="bench") as bus:
        return (await BusClient(bus, model=alone.endpoint.model).run(prompt, load)).ttft


def measure(
    alone: GatewayAlone, litellm: Litellm, model: Path, num_streams: int, arguments: Any
) -> dict[str, object]:
    """Return the row of one number of streams."""
    num_tokens, num_requests = arguments.tokens, max(arguments.requests, 4 * num_streams)
    load = StreamLoad(num_streams, num_requests, num_tokens, num_tokens * STEP_SECONDS)
    text, token_ids = prompt_of(model)
    request = {"messages": [{"role": "user", "content": text}], "temperature": 0}
    sides = {
        "pagoda": (alone.endpoint, alone.gateway_pid, {**request, "ignore_eos": True}),
        "litellm": (litellm.endpoint, litellm.pid, request),
    }
    direct: dict[str, list[float]] = {name: [] for name in sides}
    through: dict[str, list[float]] = {name: [] for name in sides}
    cpu = dict.fromkeys(sides, 0.0)
    num_done, num_failed = dict.fromkeys(sides, 0), dict.fromkeys(sides, 0)
    for number in range(arguments.repeats + 1):
        rows: dict[str, tuple[list[float], list[float], float, Times]] = {}
        for name, (endpoint, pid, body) in sides.items():
            if name == "pagoda":
                alone_ttft = uvloop.run(over_bus(alone, token_ids, load))
            else:
                times = uvloop.run(through_http(litellm.engine, "chat/completions", request, load))
                alone_ttft = ttft_of(times)
            before = cpu_seconds(pid)
            times = uvloop.run(through_http(endpoint, "chat/completions", body, load))
            rows[name] = (alone_ttft, ttft_of(times), cpu_seconds(pid) - before, times)
        if not number:
            continue  # the first round warms up
        for name, (alone_ttft, ttft, used, times) in rows.items():
            direct[name] += alone_ttft
            through[name] += ttft
            cpu[name] += used
            num_done[name] += len(times.answers)
            num_failed[name] += times.num_failed
    row: dict[str, object] = {"streams": num_streams, "tokens_each": num_tokens}
    added = {}
    for name in sides:
        ours, engine = quantiles(through[name]), quantiles(direct[name])
        added[name] = [a - b for a, b in zip(ours, engine, strict=True)]
        row[name] = {
            "requests": num_done[name], "failed": num_failed[name],
            "ttft_ms": [round(v, 2) for v in ours],
            "ttft_direct_ms": [round(v, 2) for v in engine],
            "added_ttft_ms": [round(v, 2) for v in added[name]],
            "cpu_us_per_token": round(1e6 * cpu[name] / (num_done[name] * num_tokens), 1),
        }  # fmt: skip
    ratios = [a / b for a, b in zip(added["litellm"], added["pagoda"], strict=True)]
    row["litellm_to_pagoda_added_ttft"] = [round(ratio, 1) for ratio in ratios]
    per_request = {name: cpu[name] / num_done[name] for name in sides}
    row["litellm_to_pagoda_cpu"] = round(per_request["litellm"] / per_request["pagoda"], 1)
    return row


def main() -> None:
    """Measure and print, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers-home", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("demo/model"), help="for its tokenizer")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--requests", type=int, default=64, help="of a round, at least")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        litellm = stack.enter_context(litellm_alone(home, arguments.peers_home))
        alone = stack.enter_context(
            gateway_alone(
                home / "pagoda", model=arguments.model, step_ms=1e3 * STEP_SECONDS, vocab=VOCAB,
                first_at_once=True,
            )
        )  # fmt: skip
        apart(
            [alone.gateway_pid, litellm.pid],
            [alone.nats_pid, alone.null_worker.pid, litellm.engine_pid],
        )
        for num_streams in arguments.streams:
            print(json.dumps(measure(alone, litellm, arguments.model, num_streams, arguments)))
            sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except NotInstalledError as error:
        sys.exit(str(error))
