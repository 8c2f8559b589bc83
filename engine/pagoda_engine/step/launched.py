"""A step between its launch and the reading of its tokens."""

import itertools
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pagoda_engine.device.queue import LaunchedWork
from pagoda_engine.sampling import SampledToken, to_prompt_logprobs, to_tokens
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_engine.scheduler.scheduled import FIRST_TOKEN, NUM_NEW_TOKENS, ScheduledSequence
from pagoda_engine.scheduler.step_cost import attended_tokens
from pagoda_engine.step.result import StepStats
from pagoda_engine.step.runner import PreparedStep


@dataclass(frozen=True, slots=True)
class ReadStep:
    """What the device found, in the order of the batch.

    Attributes:
        tokens: of each entry with ``samples`` those that are its next ones: where nothing was
            proposed a single one; see `verified`. Of a step where nobody's has logprobs, and
            nothing was proposed, their bare ids, or INVALID: most are so.
        prompt_logprobs: of what each entry has ``scored``.
        embeddings: of each entry that ``embeds``; see `SequenceOutput`.
    """

    tokens: list[SequenceOf[SampledToken]] | list[int]
    prompt_logprobs: list[TokenLogprobs]
    embeddings: list[bytes]

    @property
    def num_accepted(self) -> int:
        """Tokens that were proposed and came."""
        if not self.tokens or isinstance(self.tokens[0], int):
            return 0
        return sum(len(tokens) - 1 for tokens in self.tokens if not isinstance(tokens, int))


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """What was scheduled, how it was prepared, and where it is now.

    Attributes:
        batch: as scheduled.
        prepared: as queued.
        work: on its way.
        times: of the host's clock: scheduling began, ended, the work was queued.
        draft_seconds: of the first of these spans, what a draft model took.
    """

    batch: tuple[ScheduledSequence, ...]
    prepared: PreparedStep
    work: LaunchedWork
    times: tuple[float, float, float]
    draft_seconds: float = 0.0

    def read(self) -> ReadStep:
        """Wait for the device."""
        tensors, prepared = self.work.read(), self.prepared
        scores: list[TokenLogprobs] = []
        if prepared.scored is not None:
            scores = to_prompt_logprobs(tensors[-4:], prepared.scored)
            tensors = tensors[:-4]
        embeddings: list[bytes] = []
        if prepared.num_embedded:
            embeddings = [row.tobytes() for row in tensors[-1].numpy().astype("<f4", copy=False)]
            tensors = tensors[:-1]
        if not prepared.rows:
            return ReadStep([], scores, embeddings)
        if not prepared.has_proposed and len(tensors) == 1:
            token_ids = tensors[0].tolist()
            return ReadStep([token_ids[row] for row in prepared.row_of], scores, embeddings)
        by_row = to_tokens(tensors, prepared.rows)
        sampled = iter([by_row[row] for row in prepared.row_of])
        tokens = [
            verified(entry.proposed, [*itertools.islice(sampled, entry.num_rows)])
            for entry in self.batch
            if entry.samples
        ]
        return ReadStep(tokens, scores, embeddings)

    def device_seconds(self, previous: "LaunchedStep | None") -> tuple[float, float, float]:
        """Return the device's gap before it, its forward and its sampling, once it was read.

        Args:
            previous: the step before, if the engine was not idle in between.
        """
        gap_seconds = 0.0 if previous is None else self.work.gap_after(previous.work)
        return (gap_seconds, *self.work.times())

    def stats(
        self,
        device_seconds: tuple[float, float, float],
        *,
        num_accepted: int,
        num_preempted: int,
        unclaimed_ns: int,
        wait_seconds: float,
        commit_seconds: float,
    ) -> StepStats:
        """Return sizes and times, once its tokens are committed; all else as in `StepStats`.

        Args:
            device_seconds: see there.
            num_accepted: proposed tokens that were right.
            num_preempted: since the step before was read.
            unclaimed_ns: see StepStats.
            wait_seconds: that `read` took.
            commit_seconds: what its tokens took afterwards.
        """
        started, scheduled, launched = self.times
        gap_seconds, forward_seconds, sample_seconds = device_seconds
        num_new = sum(map(NUM_NEW_TOKENS, self.batch))
        prefills = [entry for entry in self.batch if entry[3]]
        num_decodes, num_proposed = len(self.batch) - len(prefills), 0
        num_forced = num_resumed = num_failed_over = 0
        if num_new > len(self.batch):
            num_proposed = sum(len(entry.proposed) for entry in self.batch)
            num_forced = num_new - num_decodes - num_proposed - sum(map(NUM_NEW_TOKENS, prefills))
        for entry in prefills:
            num_first = entry.sequence.take_prompt_tokens(entry.first_token, entry.num_new_tokens)
            if entry.sequence.request.output_token_ids:
                num_failed_over += num_first
            num_resumed += entry.num_new_tokens - num_first
        return StepStats(
            num_sequences=len(self.batch),
            num_prefill_tokens=num_new - num_decodes - num_proposed,
            num_decode_tokens=num_decodes,
            num_proposed_tokens=num_proposed,
            num_accepted_tokens=num_accepted,
            num_forced_tokens=num_forced,
            num_resumed_tokens=num_resumed,
            num_failed_over_tokens=num_failed_over,
            num_context_tokens=sum(map(FIRST_TOKEN, self.batch)) + num_new,
            num_prefill_context_tokens=sum(entry.num_context_tokens for entry in prefills),
            num_attended_tokens=sum(
                attended_tokens(entry.first_token, entry.num_new_tokens) for entry in prefills
            ),
            num_preempted=num_preempted,
            started=started,
            schedule_seconds=scheduled - started,
            draft_seconds=self.draft_seconds,
            launch_seconds=launched - scheduled - self.work.inline_seconds,
            forward_seconds=forward_seconds,
            sample_seconds=sample_seconds,
            wait_seconds=wait_seconds,
            commit_seconds=commit_seconds,
            gap_seconds=gap_seconds,
            is_graph=self.prepared.is_graph,
            unclaimed_ns=unclaimed_ns,
        )


def verified(
    proposed: SequenceOf[int], sampled: SequenceOf[SampledToken]
) -> SequenceOf[SampledToken]:
    """Return the tokens that come next, whatever was proposed: at least one.

    The token sampled behind a proposed one counts if that one is what was sampled in its place. A
    draw depends on seed and index alone, so these are the tokens of as many steps of one each. What
    has no valid token behind it is left for a step of its own.

    Args:
        proposed: K tokens.
        sampled: K + 1 tokens, the first behind what is known.
    """
    num_tokens = 1
    for token_id, token, following in zip(proposed, sampled, sampled[1:], strict=False):
        if token.token_id != token_id or not (token.is_valid and following.is_valid):
            break
        num_tokens += 1
    return sampled[:num_tokens]
