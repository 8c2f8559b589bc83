"""What one run does, checked. Knows no terminal and no network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pagoda_cli.bench.errors import UsageError
from pagoda_cli.bench.results import Slo
from pagoda_cli.bench.workload import LengthRange

Api = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """One run. Exactly one pace: `concurrency` (closed loop), `rate` (Poisson) or `trace`."""

    api: Api = "completions"
    concurrency: int | None = None
    rate: float | None = None
    trace: Path | None = None
    trace_speed: float = 1.0
    trace_scale: float = 1.0
    num_requests: int | None = None
    duration_seconds: float | None = None
    prompt_tokens: LengthRange
    output_tokens: LengthRange
    prefix_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int = 0
    send_ids: bool = False
    tokenizer: Path | None = None
    timeout_seconds: float = 600.0
    max_in_flight: int = 1024
    num_warmup: int = 2
    keep_alive: bool = True  # False: a connection for each request
    slo: Slo = field(default_factory=Slo)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            UsageError: naming the flags.
        """
        paces = {
            "--concurrency": self.concurrency,
            "--rate": self.rate,
            "--trace": self.trace,
        }
        given = [name for name, value in paces.items() if value is not None]
        if len(given) != 1:
            raise UsageError(
                f"{' and '.join(given) or 'no pace'} given: choose one of {', '.join(paces)}"
            )
        if self.send_ids and self.api != "completions":
            raise UsageError("--send-ids needs --api completions: chat messages are text")
        if self.trace is None and self.num_requests is None and self.duration_seconds is None:
            raise UsageError("say how long: --requests N or --duration SECONDS")
        if self.trace is not None and self.prefix_tokens:
            raise UsageError(
                "--prefix-tokens with --trace: the trace's hash_ids say what is shared"
            )

    @property
    def path(self) -> str:
        """The endpoint's path below `/v1`."""
        return "chat/completions" if self.api == "chat" else "completions"
