"""The groups of each plan, in sizes for a GPU and in sizes that a CPU does in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from support.tiny_checkpoints import FAMILIES

from gpu.engine.decode_points import decode_row, sampling_row
from gpu.engine.golden_points import family_group, family_name
from gpu.engine.kernel_points import decode_kernels_row, prefill_kernels_row
from gpu.engine.prefill_points import prefill_row
from gpu.engine.startup_points import CheckpointSubject, ready_row
from gpu.engine.transformers_points import transformers_row
from gpu.engine.width_points import width_group, width_name
from gpu.harness.ceilings_group import ceilings_group
from gpu.harness.points import Group, Point
from gpu.harness.rows import Row
from gpu.model.model_subject import ModelSubject, Sizes
from gpu.model.shapes import SHAPES
from gpu.model.shared_weights import import_transformers


@dataclass(frozen=True)
class Scale:
    """How large a plan is wanted.

    Attributes:
        shapes: what is timed, and the weight of its share of the time.
        families: whose tiny checkpoints must give `transformers`' tokens.
        sizes: of the points.
        key_batch: the batch that the goals are about, beside 1.
        startup_layers: layers of the first shape that are written to disk and loaded.
    """

    shapes: dict[str, float]
    families: Sequence[str]
    sizes: Sizes
    key_batch: int
    startup_layers: int


SCALES = {
    "real": Scale(
        shapes={
            "llama-3.1-8b": 5.0,
            "qwen3-30b-a3b": 4.0,
            "qwen3-8b": 2.5,
            "llama-3.1-70b-8-layers": 2.5,
        },
        families=FAMILIES,
        sizes=Sizes(
            dtype=torch.bfloat16,
            batches=(1, 8, 32, 64, 128, 256),
            contexts=(1024, 8192),
            prompt_lengths=(128, 1024, 8192),  # the first replays a graph
            chunk=2048,
            num_warm_steps=4,
            num_steps=24,
        ),
        key_batch=64,
        startup_layers=4,
    ),
    "tiny": Scale(
        shapes={"tiny": 1.0},
        families=FAMILIES[:1],
        sizes=Sizes(
            dtype=torch.float32,
            batches=(1, 4),
            contexts=(32, 96),
            prompt_lengths=(32, 96),
            chunk=32,
            num_warm_steps=2,
            num_steps=4,
        ),
        key_batch=4,
        startup_layers=1,
    ),
}
"""By name; tiny is for trying this code out."""

TPOT_GOALS = {1: 1.20, 64: 1.35}
"""Of an 8B shape at the shorter context: the time over the floor, by batch."""

PREFILL_GOAL = 0.65
"""Of an 8B shape's longest prompt in one chunk: fraction of the matmul rate."""

FIRST_SHAPE = "llama-3.1-8b"


def golden_groups(size: str, device: str) -> list[Group]:
    """What must be right before anything is timed; the slowest to compile come first."""
    scale = SCALES[size]
    first = next(iter(scale.shapes))
    widths = [width_group(name, scale.sizes, is_started=name == first) for name in scale.shapes]
    return widths + [family_group(family) for family in scale.families]


def speed_groups(size: str, device: str) -> list[Group]:
    """The ceilings, then every shape, then the start of a process."""
    scale = SCALES[size]
    first = next(iter(scale.shapes))
    startup = Group(
        "start-up",
        lambda setting: CheckpointSubject(setting, first, scale.startup_layers, scale.sizes.dtype),
        (Point("ready", ready_row, seconds=60.0),),
        weight=2.5,
        requires=_requirements(first, scale),
        prepare=import_transformers,
    )
    shapes = [_shape_group(name, weight, scale) for name, weight in scale.shapes.items()]
    return [ceilings_group(size), *shapes[:2], startup, *shapes[2:]]


def _shape_group(name: str, weight: float, scale: Scale) -> Group:
    sizes = scale.sizes
    short, long = min(sizes.contexts), max(sizes.contexts)
    key = (1, scale.key_batch)
    prompts = sorted(sizes.prompt_lengths, reverse=True)
    decodes = [(batch, short) for batch in key]
    later = [(batch, short) for batch in sizes.batches if batch not in key]
    later += [(batch, long) for batch in (*key, *(b for b in sizes.batches if b not in key))]
    goals = TPOT_GOALS if name == FIRST_SHAPE else {}
    prefill_goal = PREFILL_GOAL if name == FIRST_SHAPE else None
    points = [
        Point("capture", capture_row, seconds=60.0, is_gate=True),
        *(_decode_point(batch, context, goals.get(batch)) for batch, context in decodes),
        _prefill_point(prompts[0], is_chunked=False, goal=prefill_goal),
        *(_decode_point(batch, context, None) for batch, context in later),
        Point(
            f"sampling b{scale.key_batch}",
            partial(sampling_row, batch=scale.key_batch, context=short),
        ),
        *(_prefill_point(length, is_chunked=False, goal=None) for length in prompts[1:]),
        *(
            Point(
                f"transformers b{batch} ctx{short}",
                partial(transformers_row, batch=batch, context=short),
            )
            for batch in reversed(key)
        ),
        _prefill_point(prompts[0], is_chunked=True, goal=None),
        *(  # last: a profiler may leave traces in what is timed after it
            Point(
                f"kernels b{batch} ctx{short}",
                partial(decode_kernels_row, batch=batch, context=short),
            )
            for batch in key
        ),
        Point(f"kernels {prompts[0]}", partial(prefill_kernels_row, length=prompts[0])),
    ]
    return Group(
        name,
        lambda setting: ModelSubject(setting, SHAPES[name], sizes),
        tuple(points),
        weight=weight,
        requires=_requirements(name, scale),
        prepare=import_transformers,
    )


def capture_row(subject: ModelSubject) -> Row:
    """Make the engine and its graphs."""
    subject.engine()
    return subject.capture_facts


def _decode_point(batch: int, context: int, goal: float | None) -> Point:
    return Point(
        f"decode b{batch} ctx{context}",
        partial(decode_row, batch=batch, context=context, goal=goal),
    )


def _prefill_point(length: int, *, is_chunked: bool, goal: float | None) -> Point:
    kind = " chunked" if is_chunked else ""
    return Point(
        f"prefill {length}{kind}",
        partial(prefill_row, length=length, is_chunked=is_chunked, goal=goal),
    )


def _requirements(shape_name: str, scale: Scale) -> tuple[str, ...]:
    """The shape's width, and the tiny checkpoint of its family where there is one."""
    architecture = SHAPES[shape_name].architecture.removesuffix("ForCausalLM").lower()
    families = [f for f in scale.families if f.replace("-", "").replace("_", "") == architecture]
    return (width_name(shape_name), *map(family_name, families))
