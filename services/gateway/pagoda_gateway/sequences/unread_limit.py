"""How many tokens of one request may wait for its client, and what it is told beyond."""

from dataclasses import dataclass

from pagoda_gateway.errors import GatewayError, LongAnswerError, UndeliveredError


@dataclass(frozen=True, slots=True)
class UnreadLimit:
    """A bound on the unread tokens of all sequences together.

    Attributes:
        max_tokens: so many; of an answer that is no stream, log probabilities count too.
        is_stream: the client reads what there is; else it gets the whole answer at the end.
        num_logprobs: alternatives that come with each token.
    """

    max_tokens: int
    is_stream: bool
    num_logprobs: int

    @property
    def num_tokens(self) -> int:
        """Tokens that may wait, whatever comes with them."""
        return self.max_tokens if self.is_stream else self.max_tokens // (1 + self.num_logprobs)

    def error(self) -> GatewayError:
        """Return what is said to whom more would wait for."""
        if self.is_stream:
            return UndeliveredError(
                f"more than {self.num_tokens} tokens wait for this client: read faster, or ask for "
                "fewer tokens"
            )
        more = f" with {self.num_logprobs} alternatives each" if self.num_logprobs else ""
        return LongAnswerError(
            f"the answer has more than {self.num_tokens} tokens{more}: one that is no stream may "
            f"have {self.max_tokens} tokens, alternatives included, over all choices; ask for a "
            "stream, or for fewer tokens, choices or log probabilities"
        )
