"""A sequence as the prefill worker holds it: who waits for its KV, and what of it is computed."""

import asyncio
from dataclasses import dataclass, field

from pagoda_engine import ComputedBlocks, ComputedLayers, FinishReason, SequenceOutput
from pagoda_worker.sequences import LiveSequence

Events = asyncio.Queue[ComputedBlocks | ComputedLayers | SequenceOutput]


@dataclass(slots=True, eq=False)
class PrefillSequence(LiveSequence):
    """One prompt that is prefilled here for a consumer.

    Attributes:
        lease_id: of the consumer that waits for it.
        lease_epoch: of that consumer.
        first_block: the consumer has those before it.
        finish_reason: of its output; empty once the consumer goes on with it.
        events: what the engine computed, for the task that exports it; bounded by the chunks and
            layer groups of its prompt.
    """

    lease_id: str = ""
    lease_epoch: str = ""
    first_block: int = 0
    finish_reason: str = FinishReason.ABORT.value
    events: Events = field(default_factory=asyncio.Queue)
