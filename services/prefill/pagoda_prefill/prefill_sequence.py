"""A sequence as the prefill worker holds it: who waits for its KV, and what of it is computed."""

import asyncio
from dataclasses import dataclass, field

from pagoda_engine import ComputedBlocks, ComputedLayers, SequenceOutput
from pagoda_worker.sequences import LiveSequence

Events = asyncio.Queue[ComputedBlocks | ComputedLayers | SequenceOutput]


@dataclass(slots=True, eq=False)
class PrefillSequence(LiveSequence):
    """One prompt that is prefilled here for a consumer.

    Attributes:
        lease_id: of the consumer that waits for it.
        lease_epoch: of that consumer.
        first_block: the consumer has those before it.
        events: what the engine computed, for the task that exports it; bounded by the chunks and
            layer groups of its prompt.
    """

    lease_id: str = ""
    lease_epoch: str = ""
    first_block: int = 0
    events: Events = field(default_factory=asyncio.Queue)
