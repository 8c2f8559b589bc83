"""The gateway and the bus alone: tokens per CPU second with an engine that computes nothing."""

from pathlib import Path

from driving.load import Load, drive
from driving.spread import Spread
from running.processes import cpu_seconds, gateway_alone

from pagoda_cli.bench.results import Results
from sections.section import Section, failures

STEP_MS = 10.0
LOAD = Load(concurrency=64, num_requests=256, prompt_tokens=256, output_tokens=128)


class GatewaySection:
    """Collects repetitions, each with processes of its own; `section` reports them."""

    def __init__(self, model: Path, *, vocab: int) -> None:
        self._model = model
        self._vocab = vocab
        self._runs: list[Results] = []
        self._per_core: list[float] = []
        self._nats_us: list[float] = []
        self._messages_per_step: list[float] = []
        self._batch: list[float] = []

    def repeat(self, home: Path, *, seed: int) -> None:
        """Start, load, stop."""
        with gateway_alone(home, model=self._model, step_ms=STEP_MS, vocab=self._vocab) as alone:
            before = cpu_seconds(alone.gateway_pid), cpu_seconds(alone.nats_pid)
            results = drive(
                alone.endpoint, LOAD, tokenizer=self._model / "tokenizer.json", seed=seed
            )
            gateway_seconds = cpu_seconds(alone.gateway_pid) - before[0]
            nats_seconds = cpu_seconds(alone.nats_pid) - before[1]
            counts = alone.stop_worker()
        self._runs.append(results)
        self._per_core.append(results.num_output_tokens / gateway_seconds)
        self._nats_us.append(1e6 * nats_seconds / results.num_output_tokens)
        self._messages_per_step.append(counts["num_messages"] / counts["num_steps"])
        self._batch.append(counts["num_tokens"] / counts["num_steps"])

    def section(self) -> Section:
        """Return the report."""
        per_core = Spread.of(self._per_core)
        speed = Spread.of([run.output_tokens_per_second for run in self._runs])
        messages = Spread.of(self._messages_per_step)
        batch = Spread.of(self._batch)
        nats = Spread.of(self._nats_us)
        return Section(
            title="Gateway and bus alone",
            columns=[
                "tok/s per core of the gateway",
                "tok/s delivered",
                "NATS messages per step",
                "tokens per step",
                "NATS CPU us per token",
                "failed",
            ],
            rows=[
                [
                    per_core.text(0),
                    speed.text(0),
                    messages.text(2),
                    batch.text(1),
                    nats.text(1),
                    failures(self._runs),
                ]
            ],
            notes=[
                f"{LOAD.text}; a null worker that steps every {STEP_MS:g} ms, no router, Redis or "
                "engine. Per core: output tokens over the gateway process's CPU seconds, requests' "
                "own cost (HTTP, hashing, usage log) included. Every token is a separate SSE event."
            ],
            spreads={
                "tokens_per_gateway_cpu_second": per_core,
                "tokens_per_second": speed,
                "messages_per_step": messages,
                "tokens_per_step": batch,
                "nats_cpu_us_per_token": nats,
            },
        )
