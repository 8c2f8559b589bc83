"""What a decode step takes, at one batch and context, beside its floor and its prediction."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gpu.harness.rows import Row
from gpu.harness.timing import Timing
from gpu.model.model_subject import ModelSubject, decoding
from gpu.model.roofline import StepShape
from pagoda_engine import Engine, SamplingParams, StepStats


@dataclass(frozen=True)
class TimedStep:
    """One step: host seconds from the end of the one before, and what the engine says of it."""

    seconds: float
    stats: StepStats


def decode_row(
    subject: ModelSubject, batch: int, context: int, *, goal: float | None = None
) -> Row:
    """Greedy decodes.

    Args:
        subject: the model.
        batch: sequences.
        context: tokens of each before the first step.
        goal: the time per output token over the floor's that is wanted at most.
    """
    sizes = subject.sizes
    with decoding(subject, batch, context, greedy(sizes.num_output_tokens)) as engine:
        steps = timed_steps(engine, sizes.num_warm_steps, sizes.num_steps, batch)
    middle = context + sizes.num_warm_steps + sizes.num_steps // 2
    shape = StepShape.decode(batch, middle)
    timing = Timing.of([step.seconds for step in steps])
    floor = subject.roofline.floor_seconds(shape, subject.ceilings)
    predicted = subject.roofline.predicted_seconds(shape, subject.ceilings)
    return {
        "batch": batch,
        "context": context,
        "num_steps": timing.num_repetitions,
        "p20_ms": timing.p20 * 1e3,
        "p50_ms": timing.p50 * 1e3,
        "p80_ms": timing.p80 * 1e3,
        "worst_ms": max(step.seconds for step in steps) * 1e3,
        "tokens_per_second": batch / timing.p50,
        "floor_bytes": subject.roofline.floor_bytes(shape),
        "touched_experts": subject.roofline.touched_experts(batch),
        "floor_ms": floor * 1e3,
        "predicted_ms": predicted * 1e3,
        "over_floor": timing.p50 / floor,
        "goal": goal,
        "meets_goal": None if goal is None else timing.p50 <= goal * floor,
        **_host_facts([step.stats for step in steps]),
        "peak_bytes": _peak_bytes(subject),
    }


def sampling_row(subject: ModelSubject, batch: int, context: int) -> Row:
    """The same decodes greedily, and with temperature and top-p."""
    sizes = subject.sizes

    def drawn(number: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=sizes.num_output_tokens,
            temperature=0.8,
            top_p=0.95,
            seed=number,
            ignore_eos=True,
        )

    found: Row = {"batch": batch, "context": context}
    for name, sampling in (("greedy", greedy(sizes.num_output_tokens)), ("top_p", drawn)):
        with decoding(subject, batch, context, sampling) as engine:
            steps = timed_steps(engine, sizes.num_warm_steps, sizes.num_steps, batch)
        found[f"{name}_p50_ms"] = statistics.median(s.seconds for s in steps) * 1e3
        sample_seconds = statistics.median(s.stats.sample_seconds for s in steps)
        found[f"{name}_sample_ms"] = sample_seconds * 1e3
    return {**found, "added_ms": found["top_p_p50_ms"] - found["greedy_p50_ms"]}


def greedy(max_tokens: int) -> Callable[[int], SamplingParams]:
    """Return what gives every sequence greedy sampling."""

    def sampling(number: int) -> SamplingParams:
        return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)

    return sampling


def timed_steps(engine: Engine, num_warm: int, num_steps: int, batch: int) -> list[TimedStep]:
    """Run decodes and time those after the first `num_warm`.

    Where the engine launches ahead, a step returns what the step before computed; in a steady
    state that takes as long as any other, so the time between returns is the time of a step.
    """
    for _ in range(num_warm):
        engine.step()
    steps, last = [], time.perf_counter()
    for _ in range(num_steps):
        result = engine.step()
        now = time.perf_counter()
        assert result.stats.num_decode_tokens == batch, "a sequence left the batch"
        steps.append(TimedStep(now - last, result.stats))
        last = now
    return steps


def _host_facts(stats: Sequence[StepStats]) -> Row:
    """What the device waited, and what the host did meanwhile, in microseconds."""
    row: Row = {}
    for name in ("gap", "schedule", "launch", "wait", "commit"):
        seconds = sorted(getattr(s, f"{name}_seconds") for s in stats)
        row[f"{name}_us"] = statistics.median(seconds) * 1e6
        row[f"worst_{name}_us"] = seconds[-1] * 1e6
    for name in ("forward", "sample"):
        row[f"{name}_ms"] = statistics.median(getattr(s, f"{name}_seconds") for s in stats) * 1e3
    row["is_graph"] = all(s.is_graph for s in stats)
    return row


def _peak_bytes(subject: ModelSubject) -> int:
    if subject.device.type != "cuda":
        return 0
    return torch.cuda.max_memory_reserved()
