"""Which kernels a step's time goes to: what to look at when a step is far above its prediction."""

from gpu.engine.decode_points import greedy, timed_steps
from gpu.engine.kernel_times import DeviceTime, Event, device_events, device_time
from gpu.engine.prefill_points import NUM_REPETITIONS, prefill
from gpu.harness.points import NotAvailableError
from gpu.harness.rows import Row
from gpu.model.model_subject import ModelSubject, decoding
from gpu.model.roofline import StepShape

NUM_STEPS = 8
NUM_KERNELS = 20
"""Of a row; the rest is added up."""


def decode_kernels_row(subject: ModelSubject, batch: int, context: int) -> Row:
    """Greedy decodes from graphs, as `decode_row` times them."""
    sizes = subject.sizes
    with decoding(subject, batch, context, greedy(sizes.num_output_tokens)) as engine:
        timed_steps(engine, sizes.num_warm_steps, 0, batch)
        subject.synchronize()
        events = device_events(lambda: timed_steps(engine, 0, NUM_STEPS, batch), subject.device)
    step = StepShape.decode(batch, context + sizes.num_warm_steps + NUM_STEPS // 2)
    return {"batch": batch, "context": context, **_row(subject, events, step, NUM_STEPS)}


def prefill_kernels_row(subject: ModelSubject, length: int) -> Row:
    """One prompt in one step."""
    warm, measured = range(NUM_REPETITIONS + 1, NUM_REPETITIONS + 3)  # prompts not cached yet
    prefill(subject, length, warm, "graphs")
    subject.synchronize()
    events = device_events(lambda: prefill(subject, length, measured, "graphs"), subject.device)
    return {"length": length, **_row(subject, events, StepShape((length,), (length,)), 1)}


def _row(subject: ModelSubject, events: list[Event], step: StepShape, num_steps: int) -> Row:
    if not events:
        raise NotAvailableError("the profiler saw nothing on the device")
    found = device_time(events, num_steps)
    floor = subject.roofline.floor_seconds(step, subject.ceilings)
    return {
        "busy_ms": found.busy_seconds * 1e3,
        "idle_ms": found.idle_seconds * 1e3,
        "predicted_ms": subject.roofline.predicted_seconds(step, subject.ceilings) * 1e3,
        "over_floor": found.busy_seconds / floor,
        **_kernels(found),
    }


def _kernels(found: DeviceTime) -> Row:
    shown = [
        {
            "name": kernel.name,
            "grid": kernel.grid,
            "per_step": kernel.per_step,
            "p50_us": kernel.median_seconds * 1e6,
            "ms": kernel.seconds * 1e3,
        }
        for kernel in found.kernels[:NUM_KERNELS]
    ]
    rest = found.kernels[NUM_KERNELS:]
    return {"kernels": shown, "other_kernels_ms": sum(kernel.seconds for kernel in rest) * 1e3}
