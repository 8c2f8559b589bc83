"""Where it is noted what clients have. Knows no account."""

from typing import Protocol


class Delivery(Protocol):
    """What one sequence's client has, for whoever closes its account if this process is killed."""

    def note(self, num_tokens: int) -> None:
        """Say how many tokens the client has now."""

    def end(self) -> None:
        """The account is closed; nothing is noted any more."""
