"""One step as it is planned: decodes and what they verify first, then tokens of prompts.

Knows who may be in it and the budgets of tokens. Knows nothing of queues, and not who is admitted.
"""

import math
from collections.abc import Sequence as SequenceOf

from pagoda_engine.config import EngineConfig
from pagoda_engine.scheduler.limits import (
    BLOCKS,
    END_OF_PROMPT,
    STEP_TIME,
    STEP_TOKENS,
    TENANT_SHARE,
    count,
)
from pagoda_engine.scheduler.preemption import RunningBlocks
from pagoda_engine.scheduler.proposing.room import ProposalRoom
from pagoda_engine.scheduler.scheduled import ScheduledSequence
from pagoda_engine.scheduler.sequence import Flow, Sequence, SequenceState
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.scheduler.tenants.flows import Flows
from pagoda_engine.scheduler.tenants.sharing import SharedStep

LONG_STEP = 1.85
"""A prompt of more than one step makes steps so many times as long as decodes alone do, or as one
token of it makes them. Short prompts that join them, and what is misjudged, come on top."""
MIN_CHUNK = 16
"""Tokens of such a prompt in a step at least, or as many as take no longer than its first ones."""


class StepPlan:
    """A step that is being put together.

    Attributes:
        batch: what it computes so far.
        budgets: tokens that each flow's prompts may have yet.
        limits: what was counted of its chunks, and of whom.
    """

    def __init__(
        self,
        number: int,
        config: EngineConfig,
        cost: StepCost,
        *,
        flows: Flows,
        running_blocks: RunningBlocks,
        proposals: ProposalRoom | None,
        shared: SharedStep | None,
    ) -> None:
        """Begin with nothing.

        Args:
            number: of the step.
            config: limits.
            cost: of steps.
            flows: of all sequences.
            running_blocks: gives decodes and prompts the blocks of their tokens.
            proposals: for decodes; None: nobody speculates.
            shared: who gets what of it; None: one flow is alone.
        """
        self.batch: list[ScheduledSequence] = []
        self.budgets: dict[Flow, int] = {}
        self.limits: list[tuple[Sequence, str]] = []
        self._number = number
        self._cost = cost
        self._flows = flows
        self._running_blocks = running_blocks
        self._proposals = proposals
        self._shared = shared
        self._max_num_tokens = config.max_num_batched_tokens
        self._enough_prompt_tokens = config.enough_prompt_tokens or config.max_num_batched_tokens

    def add_decodes(self, decodes: list[Sequence]) -> list[Sequence]:
        """Give decodes their token; forced and proposed ones come out of what is nobody's share.

        Args:
            decodes: all that could be in the step.

        Returns:
            Those who lost their blocks to a decode.
        """
        budgets, shared = self.budgets, self._shared
        if shared is not None:
            decodes = shared.turns(decodes)
            for flow, share in shared.shares.items():
                budgets[flow] = share.num_prefill_tokens
        victims = self._running_blocks.grow_decodes(decodes, self._cost)
        if victims:
            decodes = [s for s in decodes if s.state is SequenceState.RUNNING]
        others = [s for s in decodes if not s.is_plain]
        num_rows = len(decodes) + sum(len(s.siblings) for s in others)
        spare = self._max_num_tokens - num_rows - sum(budgets.values())
        if spare < 0:  # a search took more turns than its flow had: prompts wait for it
            for flow in budgets:
                spare, budgets[flow] = min(0, spare + budgets[flow]), max(0, budgets[flow] + spare)
        proposals: dict[Sequence, SequenceOf[int]] = {}
        if self._proposals is not None and not self._proposals.rest(decodes):
            unclaimed = math.inf if shared is None else shared.unclaimed
            proposals = self._proposals.propose(
                decodes, self._cost, spare=spare, unclaimed=unclaimed
            )
        number, batch = self._number, self.batch
        for flow in {s.flow for s in (decodes if self._flows.are_several else decodes[:1])}:
            self._flows.note_step(flow, number, is_prefill=False)
        for sequence in decodes:
            sequence.last_step = number
        entries = ScheduledSequence.of_decodes(decodes)
        if not (others or proposals):  # most are so
            batch.extend(entries)
        else:
            for entry in entries:
                sequence, proposed = entry[0], proposals.get(entry[0], ())
                if sequence.is_plain and not proposed:
                    batch.append(entry)
                    continue
                spare -= self._add(sequence, spare + 1, tuple(proposed)) - 1
                for sibling in sequence.siblings:
                    self._add(sibling, 1)
        if shared is None:
            budgets.update(dict.fromkeys(self._flows, spare))
        return victims

    def add_prompt(self, sequence: Sequence) -> None:
        """Give a prompt its tokens: all of them if it fits a step, else few beside decodes.

        Who decodes waits once for a short prompt, but not again and again for a long one. Whether
        it is long goes by what it takes: few tokens behind a long cached prefix take long too.
        """
        flow, cost = sequence.flow, self._cost
        budget = self.budgets[flow]
        limit = STEP_TOKENS if self._shared is None else TENANT_SHARE
        if (num_slots := self._running_blocks.extend(sequence)) < budget:
            budget, limit = num_slots, BLOCKS
        cached = sequence.num_cached_tokens
        if not budget:
            return
        whole_step = cost.of_prompt(0, self._max_num_tokens)
        is_long = cost.of_prompt(cached, sequence.prefill_end - cached) > whole_step
        if is_long and (num_decodes := sum(not entry.is_prefill for entry in self.batch)):
            spare = (LONG_STEP - 1) * cost.of(num_decodes=num_decodes, num_prefill_tokens=0)
            spare = max(spare, cost.of_prompt(0, MIN_CHUNK))
            num_tokens = max(1, cost.tokens_within(spare, sequence.num_launched_tokens))
            if num_tokens < budget:
                budget, limit = num_tokens, STEP_TIME
        self._flows.note_step(flow, self._number, is_prefill=True)
        self.budgets[flow] -= self._add(sequence, budget)
        if self.batch[-1].samples:
            limit = END_OF_PROMPT
        count(sequence.chunk_limits, limit)
        self.limits.append((sequence, limit))
        if not self._flows.are_several:
            num_scheduled = sum(entry.num_new_tokens for entry in self.batch if entry.is_prefill)
            if num_scheduled >= self._enough_prompt_tokens:
                self.budgets[flow] = 0

    def _add(self, sequence: Sequence, budget: int, proposed: tuple[int, ...] = ()) -> int:
        """Compute as many of a sequence's tokens as a budget allows; return how many."""
        first_token = sequence.num_launched_tokens
        missing = sequence.num_tokens - first_token + len(proposed)
        num_new_tokens = min(missing, budget)
        is_prefill, samples = first_token < sequence.prefill_end, num_new_tokens == missing
        sequence.last_step = self._number
        self.batch.append(
            ScheduledSequence(sequence, first_token, num_new_tokens, is_prefill, samples, proposed)
        )
        return num_new_tokens
