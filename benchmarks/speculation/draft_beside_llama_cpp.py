"""What a draft model gains beside llama.cpp's draft mode: the same two models, prompts and tokens.

    PYTHONPATH=tests:benchmarks OMP_NUM_THREADS=1 PEERS_HOME=DIR python \
        benchmarks/speculation/draft_beside_llama_cpp.py [--requests 20]

The demo model and its draft in bf16, prompts from the part of the plays that they were not trained
on, greedy, one sequence at a time, one thread. Ours is the engine without a server, by the clock of
its decode steps; theirs is `llama-server` by what it says of each answer, which leaves HTTP out
too. Each drafts as many tokens as it does by default, and both propose from the sequence itself as
well. Requests alternate between the four. docs/howto/compare.md says how llama.cpp is built. Prints
tokens/s, the median of the requests, and the ratio of those with the draft to those without.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from serving.peers.engines import NotInstalledError, gguf, installed
from serving.running.processes import wait_until
from speculation import DEMO, held_out_tokens, prompt
from support.engine_driver import hash_block, make_request
from support.servers import free_port

from pagoda_engine import Engine, EngineConfig, SamplingParams, load_model
from pagoda_worker.heartbeat.speed_model import SpeedModel

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".pagoda" / "bench-models"
DRAFT = DEMO.parent / "draft"
TELL_STEPS = 50


@dataclass
class Answers:
    """What one of the four did."""

    tokens_per_second: list[float] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0

    def line(self, without: "Answers | None") -> str:
        """Return its numbers, beside those without the draft."""
        speed, most = statistics.median(self.tokens_per_second), max(self.tokens_per_second)
        found = f"{speed:7.0f} tokens/s (most {most:.0f})"
        if without is None:
            return found
        ratio = speed / statistics.median(without.tokens_per_second)
        return f"{found}, {ratio:.2f} times, {self.num_accepted} of {self.num_drafted} accepted"


Ask = Callable[[list[int], int, Answers], None]


@contextlib.contextmanager
def theirs(home: Path, *, has_draft: bool) -> Iterator[Ask]:
    """Run a `llama-server`, and yield what asks it."""
    program = installed("llama.cpp", home / "llama-build" / "bin" / "llama-server")
    port = free_port()
    command = [str(program), "-m", str(gguf(home, DEMO, CACHE)), "--port", str(port)]
    command += ["-t", "1", "-tb", "1", "-c", "2048", "-np", "1", "--no-webui", "--log-disable"]
    if has_draft:
        command += ["-md", str(gguf(home, DRAFT, CACHE)), "-td", "1", "-tbd", "1"]
        command += ["--spec-type", "draft-simple,ngram-simple"]
    with (
        tempfile.NamedTemporaryFile(suffix=".log") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http,
    ):
        try:
            wait_until(lambda: _is_ready(http), process, Path(log.name))

            def ask(token_ids: list[int], num_tokens: int, answers: Answers) -> None:
                body = {
                    "prompt": token_ids, "n_predict": num_tokens, "temperature": 0,
                    "ignore_eos": True, "cache_prompt": False,
                }  # fmt: skip
                timings = http.post("/completion", json=body).raise_for_status().json()["timings"]
                assert timings["predicted_n"] == num_tokens, timings
                answers.tokens_per_second.append(1e3 * num_tokens / timings["predicted_ms"])
                answers.num_drafted += timings.get("draft_n", 0)
                answers.num_accepted += timings.get("draft_n_accepted", 0)

            yield ask
        finally:
            process.terminate()


def _is_ready(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get("/health").status_code == 200
    return False


def ours(*, has_draft: bool) -> Ask:
    """Return what asks an engine of ours."""
    config = EngineConfig(
        num_blocks=2000,
        max_model_len=2048,
        num_threads=1,
        dtype="bfloat16",
        speculation="ngram" if has_draft else "off",
    )
    draft = load_model(DRAFT, config) if has_draft else None
    engine = Engine(load_model(DEMO, config), config, hash_block=hash_block, draft=draft)
    if engine.drafter is not None:
        engine.drafter.warm_up()
    speed = SpeedModel()

    def ask(token_ids: list[int], num_tokens: int, answers: Answers) -> None:
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        tenant = f"{len(answers.tokens_per_second)}".encode()  # so that none knows another's output
        engine.add(
            make_request(
                "r",
                token_ids,
                block_size=config.block_size,
                sampling=sampling,
                tenant=tenant,
            )
        )
        seconds, num_steps = 0.0, 0
        while engine.has_work():
            started = time.perf_counter()
            stats = engine.step().stats
            took = time.perf_counter() - started
            speed.add(stats)
            num_steps += 1
            if not stats.num_prefill_tokens:
                seconds += took
                answers.num_drafted += stats.num_proposed_tokens
                answers.num_accepted += stats.num_accepted_tokens
            if num_steps % TELL_STEPS == 0 and (cost := speed.step_cost) is not None:
                engine.set_step_cost(cost)
        answers.tokens_per_second.append((num_tokens - 1) / seconds)

    return ask


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    home = os.environ.get("PEERS_HOME", "")
    parser.add_argument("--peers-home", type=Path, default=Path(home) if home else None)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    plays = held_out_tokens(DEMO)
    with contextlib.ExitStack() as exits:
        asks = {("ours", has_draft): ours(has_draft=has_draft) for has_draft in (False, True)}
        for has_draft in (False, True) if options.peers_home is not None else ():
            server = theirs(options.peers_home, has_draft=has_draft)
            asks["llama.cpp", has_draft] = exits.enter_context(server)
        answers = {key: Answers() for key in asks}
        for number in range(options.requests):
            token_ids = prompt("plays", 0, number, plays)
            for key, ask in asks.items():
                ask(token_ids, options.tokens, answers[key])
    for (whose, has_draft), found in answers.items():
        without = answers[whose, False] if has_draft else None
        print(f"{whose:10} {'with draft' if has_draft else 'without':10} {found.line(without)}")


if __name__ == "__main__":
    try:
        main()
    except NotInstalledError as error:
        sys.exit(str(error))
