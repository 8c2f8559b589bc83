"""Which requests are sent, and when: lengths, arrivals, all a function of the seed.

Knows numbers of tokens. Knows nothing of text or the network.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pagoda_cli.bench.errors import UsageError
from pagoda_cli.bench.trace_file import TraceEntry


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Number of tokens: `low` to `high`, both included, uniformly."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, *, name: str) -> "LengthRange":
        """Read `128` or `64-512`.

        Raises:
            UsageError: neither form, empty range, or below 1.
        """
        low, dash, high = text.partition("-")
        try:
            lengths = cls(int(low), int(high if dash else low))
        except ValueError:
            raise UsageError(f"{name} {text!r}: write a number or a range such as 64-512") from None
        if not 1 <= lengths.low <= lengths.high:
            raise UsageError(f"{name} {text!r}: the range must rise and start at 1 or above")
        return lengths

    def draw(self, rng: random.Random) -> int:
        """Return one length."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send, `due_seconds` after the start; None: as soon as a client is free."""

    index: int
    num_prompt_tokens: int  # the shared prefix not included
    num_output_tokens: int
    due_seconds: float | None = None
    hash_ids: tuple[int, ...] = ()  # prefix blocks of a trace; equal id = equal prefix


def poisson_offsets(rate: float, seed: int) -> Iterator[float]:
    """Yield arrival times in seconds of a Poisson process of `rate` requests/s, without end."""
    rng = random.Random(f"{seed}:arrivals")
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def planned_requests(
    *, prompt: LengthRange, output: LengthRange, seed: int, rate: float | None
) -> Iterator[PlannedRequest]:
    """Yield requests without end: closed loop if `rate` is None, else Poisson arrivals."""
    rng = random.Random(f"{seed}:lengths")
    offsets: Iterator[float | None] = (
        itertools.repeat(None) if rate is None else poisson_offsets(rate, seed)
    )
    for index, due_seconds in enumerate(offsets):
        yield PlannedRequest(index, prompt.draw(rng), output.draw(rng), due_seconds)


def replayed_requests(
    entries: Iterable[TraceEntry], *, speed: float, scale: float
) -> Iterator[PlannedRequest]:
    """Yield a trace's requests at `speed` times its pace, lengths multiplied by `scale`."""
    for index, entry in enumerate(entries):
        yield PlannedRequest(
            index=index,
            num_prompt_tokens=max(1, round(entry.num_prompt_tokens * scale)),
            num_output_tokens=max(1, round(entry.num_output_tokens * scale)),
            due_seconds=entry.offset_seconds / speed,
            hash_ids=entry.hash_ids,
        )
