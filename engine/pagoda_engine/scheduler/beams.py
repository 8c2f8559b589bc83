"""A beam search that is under way in an engine, beside the sequences that compute it.

Knows the search and block ids. Knows nothing of sequences, queues or tensors.
"""

from pagoda_engine.sampling.beam_search import BeamSearch
from pagoda_engine.sampling.token_logprobs import TokenLogprobs


class Beams:
    """What a sequence and its siblings share (see `Sequence.siblings`).

    Attributes:
        search: which outputs they follow.
        sampled: of each, in order, what the latest step found; until all have been read.
    """

    def __init__(self, search: BeamSearch) -> None:
        self.search = search
        self.sampled: list[TokenLogprobs] = []
        self._copies: list[tuple[int, int]] = []

    def restart(self) -> None:
        """Begin again: the blocks are gone."""
        self.search.restart()
        self.sampled = []
        self._copies = []

    def copy_block(self, source: int, target: int) -> None:
        """Let the next step begin with a copy of a block that is only partly filled."""
        self._copies.append((source, target))

    def take_copies(self) -> list[tuple[int, int]]:
        """Return (from, to) of the blocks to copy before the step that is being launched."""
        copies, self._copies = self._copies, []
        return copies
