"""Which sequences run in the next step, and whose KV blocks they use.

Knows queues, budgets and block ids. Knows no tensor, no device and no logits.
"""

from pagoda_engine.scheduler.scheduled import ScheduledSequence, ScheduledStep
from pagoda_engine.scheduler.scheduler import Scheduler
from pagoda_engine.scheduler.sequence import Sequence, SequenceState

__all__ = ["ScheduledSequence", "ScheduledStep", "Scheduler", "Sequence", "SequenceState"]
