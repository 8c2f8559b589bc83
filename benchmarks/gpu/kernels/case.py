"""One row of `make check-gpu`: a kernel at one shape, how it is proven, timed and judged.

Each operator has a `bench_<op>.py` in `cases` with ``def cases(device) -> list[Case]``.
Building a Case allocates nothing: `check`, `build` and the baselines allocate when they are called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Launch = Callable[[], object]
"""Runs the operator once on inputs built before; allocates only what a user's call would."""


@dataclass(frozen=True)
class Case:
    """A kernel at one shape.

    Attributes:
        op: operator, the name of its bench file.
        name: shape and dtype in words, unique in the operator: ``decode b16 ctx8192 bf16``.
        check: (seed) -> relative error norm against a float32 or float64 reference, on fresh random
            data that is never zero. Called first; beyond `tolerance` the case is not timed.
        tolerance: of `check`.
        build: allocates inputs and returns the launch to time.
        num_bytes: bytes that have to move at least once (roofline); 0 where arithmetic limits.
        num_flops: multiply-adds counted twice; 0 where bytes are the limit.
        goal: fraction of the measured ceiling to reach on an H200, if there is one.
        seconds: the process that checks or times it is ended after that.
        baselines: what a user would call otherwise, by name (sdpa, flex, compile, flashinfer, ...).
            A builder that raises is reported as not available, with the reason.
    """

    op: str
    name: str
    check: Callable[[int], float]
    tolerance: float
    build: Callable[[], Launch]
    num_bytes: int = 0
    num_flops: int = 0
    goal: float | None = None
    seconds: float = 60.0
    baselines: Mapping[str, Callable[[], Launch]] = field(default_factory=dict)
