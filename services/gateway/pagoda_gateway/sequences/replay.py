"""An output that is known already: its tokens come again as from a worker, without one."""

import asyncio
from dataclasses import dataclass

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.sequences.output.sequence import OutputSequence

FRAME_TOKENS = 16

_REASONS = {
    "stop": generate_pb2.FINISH_REASON_STOP,
    "length": generate_pb2.FINISH_REASON_LENGTH,
}


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """What a sequence came to.

    Attributes:
        token_ids: of its output.
        finish_reason: why it ended: stop or length.
        matched_stop_id: the token that ended it; None: none did, or a stop string.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    matched_stop_id: int | None

    @classmethod
    def of(cls, sequence: OutputSequence) -> "KeptOutput | None":
        """Return what a sequence came to; None if its end is no answer's."""
        reason, matched = sequence.finish_reason, sequence.matched_stop
        if reason not in _REASONS:
            return None
        matched_id = matched if isinstance(matched, int) else None
        return cls(tuple(sequence.token_ids), reason, matched_id)


async def replay(sequence: OutputSequence, output: KeptOutput) -> None:
    """Let a sequence take an output, some tokens at a time: a stream stays one."""
    sequence.begin_attempt(0)
    sequence.is_search = False  # what was found comes to each sequence by itself
    token_ids = output.token_ids
    for start in range(0, max(1, len(token_ids)), FRAME_TOKENS):
        frame = generate_pb2.Frame(
            sequence_index=sequence.index,
            first_index=start,
            token_ids=token_ids[start : start + FRAME_TOKENS],
        )
        if start + FRAME_TOKENS >= len(token_ids):
            frame.finish_reason = _REASONS[output.finish_reason]
            if output.matched_stop_id is not None:
                frame.matched_stop_token_id = output.matched_stop_id
        sequence.take(frame)
        await asyncio.sleep(0)
