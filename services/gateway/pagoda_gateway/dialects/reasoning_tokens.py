"""How many tokens of an output are reasoning; its marks are not counted.

Marks are looked for as tokens where they are tokens, else in the text.
"""

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence

from pagoda_gateway.dialects.families.harmony import (
    CALL,
    CHANNEL,
    END,
    MESSAGE,
    RETURN,
    START,
    is_thought,
)
from pagoda_gateway.dialects.reasoning import ReasoningMarks
from pagoda_gateway.dialects.source import WHITESPACE

Decode = Callable[[Sequence[int]], str]
"""Text of tokens, special ones included."""


def num_thought_tokens(
    output: Sequence[int],
    *,
    marks: ReasoningMarks,
    inside: bool,
    token_ids: Mapping[str, int],
    decode: Decode,
) -> int:
    """Return how many tokens of an output are between marks, which the prompt may have opened.

    Args:
        output: token ids.
        marks: of the model.
        inside: the prompt's end has opened it.
        token_ids: of marks that are one token each.
        decode: of the model.
    """
    begin = 0
    opened = _place(marks.open, output, token_ids, decode)
    if opened is not None and not decode(output[: opened[0]]).strip(WHITESPACE):
        begin = opened[1]
    elif not inside:  # what comes after text is text
        return 0
    closed = _place(marks.close, output, token_ids, decode)
    return (len(output) if closed is None else closed[0]) - begin


def num_analysis_tokens(
    output: Sequence[int],
    *,
    header: str,
    inside: bool,
    names: Collection[str],
    token_ids: Mapping[str, int],
    decode: Decode,
) -> int:
    """Return how many tokens of a Harmony output are in messages that its parser takes as thoughts.

    Args:
        output: token ids.
        header: of the message that the prompt's end has begun.
        inside: the output goes on in that message, not in its header.
        names: of the functions that it can call.
        token_ids: of marks, each of which is one token.
        decode: of the model.
    """
    ends = {token_ids[mark] for mark in (START, CHANNEL, END, CALL, RETURN) if mark in token_ids}
    message = token_ids.get(MESSAGE)
    count, begin = 0, 0
    is_header, thinks = not inside, inside and is_thought(header, names)
    for place, token_id in enumerate(output):
        if is_header and token_id == message:
            thinks = is_thought(f"{header} {decode(output[begin:place])}", names)
            is_header, begin = False, place + 1
        elif not is_header and token_id in ends:
            count += (place - begin) * thinks
            is_header, begin, header = True, place, ""
    return count + (not is_header and thinks) * (len(output) - begin)


def _place(
    mark: str, output: Sequence[int], token_ids: Mapping[str, int], decode: Decode
) -> tuple[int, int] | None:
    """Return how many tokens come before a mark, and with it; None: it does not come."""
    if mark in token_ids:
        try:
            place = list(output).index(token_ids[mark])
        except ValueError:
            return None
        return place, place + 1
    at = decode(output).find(mark)
    if at < 0:
        return None

    def num_tokens(num_chars: int) -> int:
        """Return how many tokens it takes to have so many characters."""
        sizes = range(len(output) + 1)
        return bisect.bisect_left(sizes, num_chars, key=lambda size: len(decode(output[:size])))

    return num_tokens(at + 1) - 1, num_tokens(at + len(mark))
