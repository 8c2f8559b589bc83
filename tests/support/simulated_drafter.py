"""A draft model that knows the imaginary model's next tokens, and takes what it is told to take.

Its KV is a count of tokens: what it drafts from must have been computed before.
"""

import random
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from pagoda_engine.scheduler import Sequence
from pagoda_engine.speculation import ForwardTime
from support.imaginary_model import VOCAB_SIZE, next_token


@dataclass
class SimulatedDrafter:
    """Right with a probability, in forwards of so many seconds, and an overhead that none says."""

    base: float
    per_token: float
    right: float = 1.0
    overhead: float = 0.0
    num_blocks: int = 1000
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    time: ForwardTime = field(default_factory=ForwardTime)
    seconds: float = 0.0
    computed: dict[Sequence, int] = field(default_factory=dict)
    ahead: dict[Sequence, list[int]] = field(default_factory=dict)
    chunks: list[int] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)  # tokens wanted of each

    def __post_init__(self) -> None:
        self.time.base, self.time.per_token = self.base, self.per_token

    def num_missing(self, sequence: Sequence) -> int:
        ahead, num_computed = self.ahead.pop(sequence, []), self.computed.get(sequence, 0)
        for expected, token in zip(ahead, sequence.token_ids[num_computed:-1], strict=False):
            if token != expected:
                break
            self.computed[sequence] += 1
        # Of a step that was not computed nothing came: the last token's logits are needed again.
        num_computed = min(self.computed.get(sequence, 0), len(sequence.token_ids) - 1)
        if sequence in self.computed:
            self.computed[sequence] = num_computed
        return len(sequence.token_ids) - num_computed

    def has_room(self, sequence: Sequence, num_drafted: int) -> bool:
        if sequence not in self.computed and len(self.computed) >= self.num_blocks:
            return False
        self.computed.setdefault(sequence, 0)
        return True

    def catch_up(self, sequence: Sequence, num_tokens: int) -> None:
        assert 0 < num_tokens < self.num_missing(sequence)
        self.chunks.append(num_tokens)
        self.computed[sequence] += num_tokens
        self.seconds += self.time.of(num_tokens)

    def draft(self, wanted: SequenceOf[tuple[Sequence, int]]) -> list[list[int]]:
        nums = [num for _, num in wanted]
        assert nums == sorted(nums, reverse=True)
        assert min(nums) >= 1
        self.batches.append(nums)
        self.seconds += self.overhead + sum(
            self.time.of(sum(num > place for num in nums)) for place in range(nums[0])
        )
        return [self._tokens(sequence, num) for sequence, num in wanted]

    def _tokens(self, sequence: Sequence, num_tokens: int) -> list[int]:
        assert not sequence.num_unread_tokens
        assert self.computed[sequence] < len(sequence.token_ids), "nothing left to compute"
        self.computed[sequence] = len(sequence.token_ids)
        tokens = [*sequence.token_ids]
        for _ in range(num_tokens):
            is_right = self.rng.random() < self.right
            tokens.append((next_token(tokens) + (not is_right)) % VOCAB_SIZE)
        self.ahead[sequence] = tokens[-num_tokens:-1]
        return tokens[-num_tokens:]

    def drop(self, sequence: Sequence) -> None:
        self.computed.pop(sequence, None)
        self.ahead.pop(sequence, None)

    def check_invariants(self, running: SequenceOf[Sequence]) -> None:
        assert self.computed.keys() <= {*running}
