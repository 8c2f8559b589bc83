"""Log probabilities of one prompt as its frames arrive: each token's once, in order.

They come before the first token of the attempt that brings them, so what is missing by then is
lost. Knows nothing of attempts.
"""

from pagoda.rpc.v1.generate_pb2 import Frame, PositionLogprobs


class PromptLogprobs:
    """What has come so far.

    Attributes:
        positions: of all prompt tokens but the first, which follows nothing.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self.positions: list[PositionLogprobs] = []
        self._num_wanted = num_prompt_tokens - 1

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return len(self.positions) >= self._num_wanted

    def take(self, frame: Frame) -> None:
        """Take what is new; what comes after a gap is left."""
        num_known = 1 + len(self.positions)
        if frame.first_prompt_index <= num_known:
            self.positions += frame.prompt_logprobs[num_known - frame.first_prompt_index :]
