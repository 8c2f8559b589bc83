"""What is stored of a line: its text in a file of answers, what it took, and whether it ran."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


class LineUsage(NamedTuple):
    """Tokens that a line took, cached ones and those of reasoning included."""

    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0


NO_USAGE = LineUsage()
NotRun = Literal["cancelled", "expired"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A line's answer.

    Attributes:
        line: of the input file, from 1.
        has_error: it belongs into the error file.
        data: JSON and a line feed.
        usage: what the answer says that it took.
        not_run: why it never ran, which is an error; None: it did, or cannot.
    """

    line: int
    has_error: bool
    data: bytes
    usage: LineUsage = NO_USAGE
    not_run: NotRun | None = None
