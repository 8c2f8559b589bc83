"""A real width with few layers in bf16: graphs repeat eager, and both agree with `transformers`.

Runs every kind of step once, too, so that the kernels are compiled before anything is timed.
"""

import math

import torch
from support.engine_driver import make_request

from gpu.engine.decode_points import greedy, timed_steps
from gpu.engine.golden_points import equal_prefix
from gpu.engine.prefill_points import prefill
from gpu.harness.points import Group, Point
from gpu.harness.rows import Row
from gpu.model.imported_sequences import BLOCK_SIZE
from gpu.model.model_subject import Mode, ModelSubject, Sizes, decoding
from gpu.model.shapes import SHAPES, with_layers
from pagoda_engine import EngineConfig, SamplingParams, TokenLogprobs
from pagoda_engine.start_up.warm_up import warm_kernels

NUM_LAYERS = 2
NUM_PROMPT_TOKENS = 16
NUM_TOKENS = 12
NUM_TOP = 20
FLOAT32_TOLERANCE = 1e-3
"""Of a natural logarithm of a probability, as the others."""

TOLERANCE = 0.1
"""bf16: kernels that add in another order differ by 0.03 where all tokens are about as likely, as
with random weights; something else than the model differs by 3."""

EXPERTS_TOLERANCE = 1.0
"""bf16, with experts: where two are about as likely, either may be chosen; 0.42 was seen."""

COMPILE_SECONDS = 90.0

Outputs = list[list[TokenLogprobs]]


def width_group(shape_name: str, sizes: Sizes, *, is_started: bool) -> Group:
    """Return what must pass before the shape is timed.

    Args:
        shape_name: see `shapes.SHAPES`.
        sizes: of the points.
        is_started: its start-up will be timed: run what a worker runs then.
    """
    shape = with_layers(SHAPES[shape_name], NUM_LAYERS)
    points = [
        Point("graphs equal eager", graphs_row, COMPILE_SECONDS),
        Point("agrees with transformers", agreement_row, COMPILE_SECONDS),
        Point("every step runs", steps_row, COMPILE_SECONDS),
    ]
    if is_started:
        points.append(Point("a worker's warm-up runs", warm_up_row, COMPILE_SECONDS))
    return Group(
        width_name(shape_name), lambda setting: ModelSubject(setting, shape, sizes), tuple(points)
    )


def width_name(shape_name: str) -> str:
    """Return the name of its group."""
    return f"width {shape_name}"


def graphs_row(subject: ModelSubject) -> Row:
    """Compare greedy tokens of one batch, up to the first that differs: then the texts differ.

    There, the graphs' token must be one that eager found as likely, within the tolerance.
    """
    eager, graphs = _generated(subject, "eager"), _generated(subject, "graphs")
    worst, num_equal = 0.0, 0
    for some, others in zip(eager, graphs, strict=True):
        same = equal_prefix([o.token_id for o in some], [o.token_id for o in others])
        num_equal += same
        for one, other in list(zip(some, others, strict=True))[: same + 1]:
            likely = dict(one.top)
            worst = _worse(worst, likely.get(other.token_id, -math.inf) - one.logprob)
            worst = _worse(worst, one.logprob - other.logprob)
    num_tokens = NUM_TOKENS * len(eager)
    return {**_judged(subject, worst), "num_tokens": num_tokens, "num_equal": num_equal}


def agreement_row(subject: ModelSubject) -> Row:
    """Compare the likeliest tokens' log-probabilities after random prompts."""
    worst = 0.0
    for number in range(3):
        tokens = subject.prompt(4 * NUM_PROMPT_TOKENS, 2_000_000 + number)
        with torch.inference_mode():
            output = subject.reference(torch.tensor([tokens], device=subject.device))
        expected = torch.log_softmax(output.logits[0, -1].float(), dim=-1)
        for token_id, logprob in _likeliest(subject, tokens):
            worst = _worse(worst, logprob - float(expected[token_id]))
    return _judged(subject, worst)


def steps_row(subject: ModelSubject) -> Row:
    """Run what will be timed, at the same batches, contexts and lengths, as far as it fits."""
    sizes = subject.sizes
    for batch in sizes.batches:
        context = min(sizes.contexts)
        with decoding(subject, batch, context, greedy(sizes.num_output_tokens)) as engine:
            timed_steps(engine, 1, 2, batch)
    for length in sizes.prompt_lengths:
        prefill(subject, length, length, "graphs")
    prefill(subject, max(sizes.prompt_lengths), 0, "chunked")
    return {}


def warm_up_row(subject: ModelSubject) -> Row:
    """Run the warm-up of a worker."""
    subject.reset()
    config = EngineConfig(device=subject.device.type, max_model_len=subject.sizes.max_model_len)
    warm_kernels(subject.model, config)
    return {}


def _generated(subject: ModelSubject, mode: Mode) -> Outputs:
    """Decode as many sequences as a graph is captured for: other widths are other products."""
    engine = subject.engine(mode)
    batch = subject.sizes.batches[1]
    sampling = SamplingParams(
        max_tokens=NUM_TOKENS, temperature=0.0, num_logprobs=NUM_TOP, ignore_eos=True
    )
    outputs: Outputs = [[] for _ in range(batch)]
    for number in range(batch):
        prompt = subject.prompt(NUM_PROMPT_TOKENS, 3_000_000 + number)
        engine.add(make_request(str(number), prompt, block_size=BLOCK_SIZE, sampling=sampling))
    while engine.has_work():
        for output in engine.step().outputs:
            outputs[int(output.sequence_id)] += output.logprobs
    assert all(len(of_one) == NUM_TOKENS for of_one in outputs), "a sequence ended early"
    return outputs


def _likeliest(subject: ModelSubject, tokens: list[int]) -> list[tuple[int, float]]:
    engine = subject.engine()
    sampling = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=NUM_TOP, ignore_eos=True)
    engine.add(make_request("agree", tokens, block_size=BLOCK_SIZE, sampling=sampling))
    found: list[tuple[int, float]] = []
    while engine.has_work():
        for output in engine.step().outputs:
            for logprobs in output.logprobs:
                found += [(logprobs.token_id, logprobs.logprob), *logprobs.top]
    assert len(found) > NUM_TOP, "the engine returned no logprobs"
    return found


def _worse(worst: float, difference: float) -> float:
    """The larger of both sizes; NaN if either is."""
    return float(torch.maximum(torch.tensor(worst), torch.tensor(difference).abs()))


def _judged(subject: ModelSubject, worst: float) -> Row:
    tolerance = TOLERANCE if subject.shape.experts is None else EXPERTS_TOLERANCE
    if subject.sizes.dtype is torch.float32:
        tolerance = FLOAT32_TOLERANCE
    # Not `worst > tolerance`: a NaN must not pass.
    status = "passed" if worst <= tolerance else "wrong"
    return {"status": status, "error": worst, "tolerance": tolerance}
