"""What a prompt takes, in one chunk or several, beside its products at the matmul rate."""

import time
from collections.abc import Sequence

from support.engine_driver import make_request

from gpu.engine.decode_points import greedy
from gpu.harness.rows import Row
from gpu.harness.timing import Timing
from gpu.model.imported_sequences import BLOCK_SIZE
from gpu.model.model_subject import Mode, ModelSubject
from gpu.model.roofline import StepShape
from pagoda_engine import StepStats

NUM_REPETITIONS = 5


def prefill_row(
    subject: ModelSubject, length: int, *, is_chunked: bool, goal: float | None = None
) -> Row:
    """Prompts of one length, one at a time, from `Engine.add` to their first token.

    Args:
        subject: the model.
        length: tokens of a prompt.
        is_chunked: in steps of at most ``Sizes.chunk`` tokens.
        goal: fraction of the matmul rate to reach.
    """
    seconds, stats = [], list[StepStats]()
    for number in range(NUM_REPETITIONS + 1):
        taken, of_steps = prefill(subject, length, number, "chunked" if is_chunked else "graphs")
        if number:  # the first one warms up
            seconds.append(taken)
            stats += of_steps
    timing = Timing.of(seconds)
    steps = _steps(length, subject.sizes.chunk if is_chunked else length)
    flops = sum(map(subject.roofline.floor_flops, steps))
    predicted = sum(subject.roofline.predicted_seconds(s, subject.ceilings) for s in steps)
    fraction = flops / timing.p50 / subject.ceilings.matmul_flops_per_second
    return {
        "length": length,
        "chunk": subject.sizes.chunk if is_chunked else None,
        "num_repetitions": timing.num_repetitions,
        "p20_ms": timing.p20 * 1e3,
        "p50_ms": timing.p50 * 1e3,
        "p80_ms": timing.p80 * 1e3,
        "tokens_per_second": length / timing.p50,
        "num_flops": flops,
        "teraflops_per_second": flops / timing.p50 / 1e12,
        "predicted_ms": predicted * 1e3,
        "fraction_of_matmul": fraction,
        "goal": goal,
        "meets_goal": None if goal is None else fraction >= goal,
        "forward_ms": _per_prompt(stats, "forward_seconds"),
        "launch_ms": _per_prompt(stats, "launch_seconds"),
    }


def prefill(
    subject: ModelSubject, length: int, number: int, mode: Mode
) -> tuple[float, list[StepStats]]:
    """Run one prompt to its first token; returns the seconds, and what its steps say."""
    engine = subject.engine(mode)
    tokens = subject.prompt(length, 1_000_000 + 1000 * length + number)
    request = make_request("prompt", tokens, block_size=BLOCK_SIZE, sampling=greedy(1)(number))
    stats, has_token = [], False
    started = time.perf_counter()
    engine.add(request)
    while not has_token:
        result = engine.step()
        stats.append(result.stats)
        has_token = any(output.token_ids for output in result.outputs)
    seconds = time.perf_counter() - started
    while engine.has_work():
        engine.step()
    return seconds, stats


def _steps(length: int, chunk: int) -> list[StepShape]:
    ends = [min(start + chunk, length) for start in range(0, length, chunk)]
    starts = [0, *ends[:-1]]
    return [StepShape((end - start,), (end,)) for start, end in zip(starts, ends, strict=True)]


def _per_prompt(stats: Sequence[StepStats], name: str) -> float:
    return float(sum(getattr(s, name) for s in stats)) / NUM_REPETITIONS * 1e3
