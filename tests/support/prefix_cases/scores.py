"""How well each class of misses is found."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from support.prefix_cases.case import Case
from support.prefix_cases.changed import edited, reordered_keys, reordered_tools, whitespace
from support.prefix_cases.requests import Asked, question
from support.prefix_cases.unchanged import (
    below_one_block,
    concurrent,
    evicted,
    never_seen,
    nothing,
    other_model,
    other_salt,
    other_worker,
)
from support.prefix_cases.volatile import counter, identifier, timestamp
from support.prefix_cases.world import found_in

MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    timestamp, identifier, counter, reordered_tools, reordered_keys, whitespace, edited,
    below_one_block, other_salt, other_model, evicted, concurrent, other_worker, never_seen,
    nothing,
)  # fmt: skip


@dataclass
class Score:
    """How often each label was found, missed, or given to others."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def recall(self, label: str) -> float:
        return self.pairs[label, label] / max(1, self._sum(0, label))

    def precision(self, label: str) -> float:
        return self.pairs[label, label] / max(1, self._sum(1, label))

    def count(self, label: str) -> int:
        return self._sum(0, label)

    def _sum(self, side: int, label: str) -> int:
        return sum(num for pair, num in self.pairs.items() if pair[side] == label)

    def table(self) -> str:
        lines = [f"{'class':20} {'cases':>6} {'precision':>9} {'recall':>7}  found instead"]
        for label in sorted({pair[0] for pair in self.pairs}):
            wrong = {b: n for (a, b), n in self.pairs.items() if a == label != b}
            lines.append(
                f"{label:20} {self.count(label):6} {self.precision(label):9.3f} "
                f"{self.recall(label):7.3f}  {wrong or ''}"
            )
        return "\n".join(lines)


def scored(seed: int, num_of_each: int) -> Score:
    """Return how well the classes of so many cases each are found, among other applications."""
    rng = random.Random(seed)
    score = Score()
    for make in MAKERS:
        for _ in range(num_of_each):
            case = make(rng)
            if case.block_size == 16 and make is not below_one_block:
                case = replace(case, block_size=rng.choice((16, 32)))
            background = () if make is never_seen else tuple(
                Asked((("user", question(rng)),)) for _ in range(3)
            )  # fmt: skip
            score.pairs[case.label, found_in(case, background)] += 1
    return score
