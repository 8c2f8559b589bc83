"""Aggregated against disaggregated: what splitting prefill from decode costs and brings here."""

from pathlib import Path

from driving.load import Load, drive
from driving.spread import Spread
from running.processes import Stack

from pagoda_cli.bench.results import Results
from sections.section import Section, failures, p50

LOADS = (
    Load(concurrency=1, num_requests=4, prompt_tokens=256, output_tokens=64),
    Load(concurrency=8, num_requests=24, prompt_tokens=256, output_tokens=64),
)


class TopologySection:
    """Collects repetitions; `section` reports them."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = model / "tokenizer.json"
        self._runs: dict[tuple[str, Load], list[Results]] = {}

    def repeat(self, stacks: list[Stack], *, seed: int) -> None:
        """Measure every stack once under every load, side by side, the same prompts."""
        for load in LOADS:
            for stack in stacks:
                results = drive(stack.endpoint, load, tokenizer=self._tokenizer, seed=seed)
                self._runs.setdefault((stack.topology, load), []).append(results)

    def section(self) -> Section:
        """Return the report."""
        section = Section(
            title="Aggregated against disaggregated",
            columns=["topology", "load", "TTFT p50 ms", "TPOT p50 ms", "tok/s", "failed"],
        )
        for (topology, load), runs in sorted(
            self._runs.items(), key=lambda item: (item[0][1].concurrency, item[0][0])
        ):
            ttft = Spread.of([p50(run, "ttft") for run in runs])
            tpot = Spread.of([p50(run, "tpot") for run in runs])
            speed = Spread.of([run.output_tokens_per_second for run in runs])
            name = f"{topology}.c{load.concurrency}"
            section.spreads |= {
                f"{name}.ttft_ms": ttft,
                f"{name}.tpot_ms": tpot,
                f"{name}.tokens_per_second": speed,
            }
            section.rows.append(
                [topology, load.text, ttft.text(), tpot.text(2), speed.text(), failures(runs)]
            )
        section.notes.append(
            "Every worker has the same number of threads: the disaggregated stack (1 prefill + 1 "
            "decode worker) has the compute of decode=2 and twice that of aggregated (1 worker)."
        )
        return section
