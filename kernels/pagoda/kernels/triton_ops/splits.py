"""Into how many parts the KV of a sequence is cut, so that few sequences still fill a GPU.

Knows counts of programs and tokens. Knows nothing of what a part computes.
"""

from typing import NamedTuple

MIN_SPLIT_TOKENS = 256
"""KV tokens below which splitting costs more in merging than it saves."""

MAX_SPLITS = 64

INVARIANT_SPLIT_TOKENS = 512
"""KV tokens of a split in the batch-invariant mode, while INVARIANT_MAX_SPLITS of them suffice."""

INVARIANT_MAX_SPLITS = 32
"""Bound of the memory that splits write; longer contexts get longer splits instead of more."""


class Splits(NamedTuple):
    """How a launch cuts sequences.

    Attributes:
        num: programs along the KV, at least the splits of the longest sequence.
        most: splits that a sequence is cut into if they are not shorter than `min_tokens`.
        min_tokens: fewest tokens of a split; both are rounded up to whole tiles.
        is_split: False if the one program writes the result itself.
    """

    num: int
    most: int
    min_tokens: int
    is_split: bool


def choose_num_splits(num_seqs: int, num_kv_heads: int, max_context: int, processors: int) -> int:
    """Splits that give every processor two programs, none shorter than MIN_SPLIT_TOKENS."""
    wanted = -(-2 * processors // (num_seqs * num_kv_heads))
    return max(1, min(wanted, max_context // MIN_SPLIT_TOKENS, MAX_SPLITS))


def choose_splits(
    num_programs: int,
    max_tokens: int,
    processors: int,
    num_splits: int | None = None,
    is_batch_invariant: bool = False,
) -> Splits:
    """Splits for `num_programs` per split over at most `max_tokens`; `num_splits` if given.

    Batch-invariant: where a sequence is cut depends on its own length alone, and partial results
    are merged even if there is one, so that the same kernels run whatever the batch.
    """
    if is_batch_invariant:
        num = min(-(-max_tokens // INVARIANT_SPLIT_TOKENS), INVARIANT_MAX_SPLITS)
        return Splits(num, INVARIANT_MAX_SPLITS, INVARIANT_SPLIT_TOKENS, True)
    if num_splits is None:
        num_splits = choose_num_splits(num_programs, 1, max_tokens, processors)
    return Splits(num_splits, num_splits, 1, num_splits > 1)
