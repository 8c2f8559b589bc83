"""Into how many parts the KV of a sequence is cut, so that few sequences still fill a GPU.

Knows counts of programs and tokens. Knows nothing of what a part computes.
"""

from typing import NamedTuple

MIN_SPLIT_TOKENS = 256
"""KV tokens below which splitting costs more in merging than it saves."""

MAX_SPLITS = 128
"""Of one sequence: what a single KV head needs to occupy a GPU."""

LONE_TOKENS = 16384
"""KV tokens that one program may read while it keeps a batch waiting that needs no splits."""

INVARIANT_SPLIT_TOKENS = 512
"""KV tokens of a split in the batch-invariant mode, while INVARIANT_MAX_SPLITS of them suffice."""

INVARIANT_MAX_SPLITS = 32
"""Bound of the memory that splits write; longer contexts get longer splits instead of more."""


class Splits(NamedTuple):
    """How a launch cuts sequences. None of it depends on what only the device knows.

    Attributes:
        num_slots: programs along the KV of all sequences, at least as many as splits.
        per_seq: slots of each sequence, in order; 0 if the slots are shared out on the device.
        share: slots shared out by length beside the one that each sequence has; 0 with `per_seq`.
        most: splits that a sequence is cut into if they are not shorter than `min_tokens`.
        min_tokens: fewest tokens of a split; both are rounded up to whole tiles.
    """

    num_slots: int
    per_seq: int
    share: int
    most: int
    min_tokens: int

    @property
    def may_split(self) -> bool:
        """Whether results of several splits may have to be merged."""
        return self.most > 1


def even_splits(num_seqs: int, num: int, most: int, min_tokens: int) -> Splits:
    """`num` slots for every sequence."""
    return Splits(num_seqs * num, num, 0, most, min_tokens)


def invariant_splits(num_seqs: int, max_tokens: int) -> Splits:
    """Splits by which a sequence is cut by its own length alone, whatever the batch."""
    num = min(-(-max_tokens // INVARIANT_SPLIT_TOKENS), INVARIANT_MAX_SPLITS)
    return even_splits(num_seqs, num, INVARIANT_MAX_SPLITS, INVARIANT_SPLIT_TOKENS)


def chosen_splits(num_seqs: int, programs: int, max_tokens: int, processors: int) -> Splits:
    """The same number for every sequence, so that every processor has two programs.

    Args:
        num_seqs: sequences, or tokens.
        programs: per sequence and split.
        max_tokens: bound of the KV tokens of a sequence.
        processors: streaming multiprocessors.
    """
    wanted = -(-2 * processors // (num_seqs * programs))
    num = max(1, min(wanted, -(-max_tokens // MIN_SPLIT_TOKENS), MAX_SPLITS))
    return even_splits(num_seqs, num, num, MIN_SPLIT_TOKENS)


def shared_splits(num_seqs: int, programs: int, max_tokens: int, processors: int) -> Splits:
    """Two programs for every processor, shared out among the sequences by length on the device.

    So a long sequence is cut though its neighbours are short, and a bound far above the lengths
    costs only slots that find nothing to do: no more than two per processor. Where every processor
    has two programs anyway and no sequence is longer than LONE_TOKENS, nothing is split.
    Arguments as `chosen_splits`.
    """
    share = -(-2 * processors // programs)
    longest = min(-(-max_tokens // MIN_SPLIT_TOKENS), MAX_SPLITS)
    if longest == 1 or (num_seqs >= share and max_tokens <= LONE_TOKENS):
        return even_splits(num_seqs, 1, 1, 1)
    num_slots = min(num_seqs + share, num_seqs * longest)
    return Splits(num_slots, 0, share, MAX_SPLITS, MIN_SPLIT_TOKENS)
