"""Tokens/s of the stack against `transformers` generating the same batch; the floor beside."""

from pathlib import Path
from typing import Any

from driving.load import Load, batch_prompts, drive
from driving.spread import Spread
from running.models import step_bytes
from running.processes import Baseline, Stack

from pagoda_cli.bench.results import Results
from sections.section import Section, failures, p50

BATCH = Load(concurrency=8, num_requests=8, prompt_tokens=256, output_tokens=64)
SINGLE = Load(concurrency=1, num_requests=2, prompt_tokens=256, output_tokens=64)


class EngineSection:
    """Collects repetitions; `section` reports them."""

    def __init__(self, model: Path, bandwidth: dict[str, Any], *, dtype: str) -> None:
        self._model = model
        self._tokenizer = model / "tokenizer.json"
        self._bandwidth = bandwidth
        self._dtype = dtype
        self._stack: list[Results] = []
        self._baseline: list[float] = []
        self._single: list[Results] = []
        self._single_baseline: list[float] = []

    def repeat(self, stack: Stack, baseline: Baseline, *, seed: int) -> None:
        """Measure both once, next to each other, the same prompts."""
        for load, results, speeds in (
            (BATCH, self._stack, self._baseline),
            (SINGLE, self._single, self._single_baseline),
        ):
            results.append(drive(stack.endpoint, load, tokenizer=self._tokenizer, seed=seed))
            prompts = batch_prompts(load, tokenizer=self._tokenizer, seed=seed)
            answers = [
                baseline.ask(
                    {
                        "prompts": prompts[start : start + load.concurrency],
                        "num_output_tokens": load.output_tokens,
                    }
                )
                for start in range(0, len(prompts), load.concurrency)
            ]
            speeds.append(
                sum(answer["num_output_tokens"] for answer in answers)
                / sum(answer["seconds"] for answer in answers)
            )

    def section(self) -> Section:
        """Return the report."""
        section = Section(
            title="Whole stack against transformers, same batch",
            columns=["load", "pagoda tok/s", "transformers tok/s", "ratio", "failed"],
        )
        for name, load, results, speeds in (
            ("batch_8", BATCH, self._stack, self._baseline),
            ("batch_1", SINGLE, self._single, self._single_baseline),
        ):
            stack_speeds = [run.output_tokens_per_second for run in results]
            ours, theirs = Spread.of(stack_speeds), Spread.of(speeds)
            ratio = Spread.ratio(stack_speeds, speeds)
            section.spreads |= {
                f"{name}.pagoda_tokens_per_second": ours,
                f"{name}.transformers_tokens_per_second": theirs,
                f"{name}.ratio": ratio,
            }
            section.rows.append(
                [load.text, ours.text(), theirs.text(), ratio.text(2), failures(results)]
            )
        self._add_floor(section)
        section.notes.append(
            "Aggregated topology with one decode worker; worker and transformers have the same "
            f"number of threads and {self._dtype}. The stack's time includes HTTP, routing, NATS, "
            "streaming; transformers' is generate() alone, prefill included."
        )
        return section

    def _add_floor(self, section: Section) -> None:
        num_bytes = step_bytes(self._model)
        floor_ms = 1e3 * num_bytes / self._bandwidth["bytes_per_second"]
        tpot = Spread.of([p50(run, "tpot") for run in self._single])
        section.spreads["batch_1.tpot_ms"] = tpot
        section.details |= {
            "floor_ms": floor_ms,
            "step_bytes": num_bytes,
            "bandwidth": self._bandwidth,
        }
        section.notes.append(
            f"Floor of a decode step at batch 1: {num_bytes / 1e6:.1f} MB of weights at "
            f"{self._bandwidth['bytes_per_second'] / 1e9:.1f} GB/s = {floor_ms:.2f} ms; TPOT here "
            f"{tpot.text(2)} ms, {tpot.median / floor_ms:.1f} times the floor. Bandwidth: "
            f"{self._bandwidth['method']}, {self._bandwidth['num_threads']} thread(s), "
            f"{self._bandwidth['reader']} was fastest. Weights that fit a cache can beat it."
        )
