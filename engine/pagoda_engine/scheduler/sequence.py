"""The engine's own state of one sequence, beside its immutable request.

Knows tokens, lengths and block ids. Knows nothing of other sequences, of the pool or of tensors.
"""

import copy
import enum
from typing import NamedTuple

from pagoda_engine.cache.block_pool import NO_BLOCKS
from pagoda_engine.sampling.row_plan import SampleRow
from pagoda_engine.sampling.sampling_state import SamplingState
from pagoda_engine.scheduler.beams import Beams
from pagoda_engine.scheduler.limits import Limits
from pagoda_engine.sequence_request import KvSource, SequenceRequest
from pagoda_engine.speculation import Guesses
from pagoda_engine.token_mask import TokenBits

MAX_INTERACTIVE_PRIORITY = 1000
"""Sequences with a higher number are in the background: those of batches."""


NULL_BLOCK = 0
"""Stands in block tables where nothing is read: an id that is there, whoever's block it is."""

NO_ADAPTER = -1
"""Slot of who has no adapter."""


class Flow(NamedTuple):
    """Whose a sequence is: what flows get is fair, what is in one flow goes by rank."""

    is_background: bool
    tenant: bytes


def flow_of(request: SequenceRequest) -> Flow:
    """Return whose a request is."""
    return Flow(request.priority > MAX_INTERACTIVE_PRIORITY, request.tenant)


class SequenceState(enum.Enum):
    """What a sequence is doing.

    WAITING -> (IMPORTING ->) RUNNING -> (HELD ->) FINISHED; a preempted one goes from RUNNING back
    to WAITING. IMPORTING, RUNNING and HELD sequences own blocks, the others own none.
    """

    WAITING = "waiting"
    IMPORTING = "importing"  # blocks reserved; someone else writes them
    RUNNING = "running"  # prefilling or decoding
    HELD = "held"  # prefill_only and sampled, or failed: blocks stay until `Engine.release`
    FINISHED = "finished"


class Sequence:
    """Mutable state of one sequence.

    Attributes:
        request: what the caller asked.
        adapter_slot: where its adapter is as long as it is here; NO_ADAPTER: it has none.
        arrival: counts the sequences ever added, up to this one.
        rank: (priority, deadline, arrival), smaller goes first in its flow: in the queue, in a
            step, and to keep blocks. No two are equal.
        flow: whose it is.
        last_step: the latest step that it was in; 0: none yet.
        state: see SequenceState.
        token_ids: prompt and output, also output of earlier attempts.
        num_prompt_tokens: ``token_ids[:num_prompt_tokens]`` is the prompt.
        max_num_tokens: length at which the output ends with LENGTH.
        num_unread_tokens: tokens that launched steps sample behind ``token_ids`` and that have not
            been read back yet.
        unread_row: row of the latest unread token in its step's tokens; means nothing if none is
            unread.
        num_launched_tokens: leading tokens whose KV is in the blocks once the launched steps have
            run.
        num_unverified_tokens: proposed tokens behind them whose KV a launched step writes too;
            which of them are kept is known once it was read.
        num_computed_tokens: leading tokens whose KV is in the blocks.
        num_cached_tokens: leading tokens whose KV was reused at the latest admission.
        prefill_end: tokens that the latest admission found; computing up to there is prefill.
        block_ids: logical -> physical; entry i covers tokens [i * block_size, (i + 1) *
            block_size).
        num_null_blocks: leading entries of it that are NULL_BLOCK: no query to come sees their
            tokens, and the sequence does not hold them.
        windowed: which of its blocks it holds with the parts that only layers with windows read,
            where blocks have such parts.
        block_hashes: of the leading full blocks, as far as known.
        num_registered_blocks: leading blocks that were offered to the pool for reuse.
        num_exported_blocks: leading blocks that `StepResult.computed` has named.
        num_announced_blocks: leading blocks whose layers a launched step names.
        was_reserved: `StepResult.reserved` has named it; a later admission after a preemption is
            not named.
        has_ended: an output with a finish_reason was reported, or it was forgotten without one.
        is_import_pending: the next admission waits for the caller to write KV.
        compute_ns: its shares of the measured time of the steps that were read.
        num_prefilled_tokens: computed by those steps as prefill; again after a preemption.
        num_counted_tokens: leading tokens that were computed as prefill before; see
            `take_prompt_tokens`.
        can_speculate: what its tokens are chosen by follows from the tokens before, or from
            nothing: so several can be chosen in one step. Penalties count on the device what each
            step has chosen.
        is_plain: a step that decodes it computes one token, and those that are proposed behind it,
            and brings tokens alone: it has no grammar, no beams, and nothing for another worker.
        masks_ahead: where a grammar says which tokens may come, those that may come next, and
            those behind each token that is proposed in the step that is being prepared.
        has_plain_rows: the sampler is told nothing of its tokens but how it samples and their
            indices.
        greedy_row: of those what is the same for each: the largest logit is taken, whatever the
            index; None: it is told of each token anew.
        guesses: its proposals; None until it is decoded, and while it waits.
        follows_read_tokens: what comes next depends on the token before in a way that the host must
            know of, so it is in no step before that was read.
        waited_for: what it lacked when it was first in line, in the order in which it did.
        waits_for_tokens: it sits out a step whenever its last token is unread, so that something
            can be proposed.
        num_proposed_tokens: verified by the steps that were read.
        num_accepted_tokens: of them, those that are in the output.
        chunk_limits: why chunks of its prompt were not longer, as often as there were some.
        proposal_limits: why proposals were not longer; those that rest are not asked why.
        beams: the search that it computes; None: it is none.
        leader: of a search the sequence that queues, states and outputs are about, and whose tokens
            and blocks are of one beam; else itself.
        siblings: of a leader the sequences of the other beams, in every step that it is in, once
            its prompt is computed. Nobody else knows them. As long as they are, all have as many
            tokens, and full blocks that they have in common are shared.
    """

    __slots__ = (
        "adapter_slot",
        "arrival",
        "beams",
        "block_hashes",
        "block_ids",
        "can_speculate",
        "chunk_limits",
        "compute_ns",
        "flow",
        "follows_read_tokens",
        "greedy_row",
        "guesses",
        "has_ended",
        "has_plain_rows",
        "is_import_pending",
        "is_plain",
        "last_step",
        "leader",
        "masks_ahead",
        "max_num_tokens",
        "num_accepted_tokens",
        "num_announced_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_counted_tokens",
        "num_exported_blocks",
        "num_launched_tokens",
        "num_null_blocks",
        "num_prefilled_tokens",
        "num_prompt_tokens",
        "num_proposed_tokens",
        "num_registered_blocks",
        "num_unread_tokens",
        "num_unverified_tokens",
        "prefill_end",
        "proposal_limits",
        "rank",
        "request",
        "sampling_state",
        "siblings",
        "state",
        "stop_token_ids",
        "token_ids",
        "unread_row",
        "waited_for",
        "waits_for_tokens",
        "was_reserved",
        "windowed",
    )

    def __init__(
        self,
        request: SequenceRequest,
        arrival: int,
        *,
        max_model_len: int,
        sampling_state: SamplingState,
        is_import_pending: bool,
        adapter_slot: int = NO_ADAPTER,
        beams: Beams | None = None,
    ) -> None:
        """Begin to wait; `arrival` counts the sequences ever added."""
        num_prompt_tokens = len(request.prompt_token_ids)
        self.request = request
        self.adapter_slot = adapter_slot
        self.arrival = arrival
        self.rank = (request.priority, request.deadline, arrival)
        self.flow = flow_of(request)
        self.last_step = 0
        self.waited_for: tuple[str, ...] = ()
        self.state = SequenceState.WAITING
        self.token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self.num_prompt_tokens = num_prompt_tokens
        self.max_num_tokens = min(max_model_len, num_prompt_tokens + request.sampling.max_tokens)
        self.num_unread_tokens = 0
        self.unread_row = 0
        self.num_launched_tokens = 0
        self.num_unverified_tokens = 0
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.prefill_end = len(self.token_ids)
        self.block_ids: list[int] = []
        self.num_null_blocks = 0
        self.windowed = NO_BLOCKS
        self.block_hashes = list(request.block_hashes)
        self.num_registered_blocks = 0
        self.num_exported_blocks = 0
        self.num_announced_blocks = 0
        self.was_reserved = False
        self.has_ended = False
        self.is_import_pending = is_import_pending
        self.compute_ns = 0
        self.num_prefilled_tokens = 0
        self.num_counted_tokens = 0
        self.is_plain = not (
            request.prefill_only
            or beams is not None
            or request.token_mask is not None
            or not request.sampling.max_tokens
        )
        self.can_speculate = not (
            request.prefill_only
            or beams is not None
            or (request.token_mask is not None and request.sampling.allowed_token_ids)
            or request.sampling.bad_words
            or sampling_state.has_penalties
            or sampling_state.penalises_repeats
        )
        sampling = request.sampling
        self.follows_read_tokens = bool(
            request.token_mask is not None
            or beams is not None
            or sampling.bad_words
            or sampling_state.penalises_repeats
        )
        self.has_plain_rows = (
            self.is_plain
            and not (sampling_state.has_penalties or sampling_state.penalises_repeats)
            and not (sampling.min_tokens or sampling.allowed_token_ids or sampling.bad_words)
        )
        self.greedy_row: SampleRow | None = None
        if self.has_plain_rows and sampling_state.is_greedy:
            self.greedy_row = SampleRow(sampling_state, index=0)
        self.masks_ahead: list[TokenBits] = []
        self.guesses: Guesses | None = None
        self.waits_for_tokens = False
        self.num_proposed_tokens = 0
        self.num_accepted_tokens = 0
        self.chunk_limits: Limits = {}
        self.proposal_limits: Limits = {}
        self.sampling_state = sampling_state
        self.stop_token_ids = frozenset(sampling_state.stop_token_ids)
        self.beams = beams
        self.leader = self
        self.siblings: list[Sequence] = []

    @property
    def sequence_id(self) -> str:
        """The caller's name for it."""
        return self.request.sequence_id

    @property
    def priority(self) -> int:
        """Who has the lower number goes first."""
        return self.request.priority

    @property
    def num_seats(self) -> int:
        """Rows of a step that it needs in the end: one for each beam."""
        return 1 if self.beams is None else self.beams.search.width

    @property
    def members(self) -> "list[Sequence]":
        """The sequences that are in a step when it is: one for each beam so far."""
        return [self, *self.siblings]

    @property
    def held_block_ids(self) -> list[int]:
        """Blocks that it holds, in logical order."""
        return self.block_ids[self.num_null_blocks :] if self.num_null_blocks else self.block_ids

    @property
    def windowed_block_ids(self) -> list[int]:
        """Blocks that it holds with their windowed parts, in logical order."""
        return self.block_ids[self.windowed.start : self.windowed.stop]

    @property
    def num_tokens(self) -> int:
        """Tokens, those included that have not been read back."""
        return len(self.token_ids) + self.num_unread_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that were read; also the output index of the next one to read."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Output tokens that were read, those of earlier attempts included."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose KV is missing; at least 1, since the last token's logits are needed."""
        return self.num_tokens - self.num_launched_tokens

    @property
    def is_handed_over(self) -> bool:
        """Whether somebody else computes its prompt."""
        return self.is_import_pending and self.request.kv_source is KvSource.HANDOVER

    @property
    def is_prefilling(self) -> bool:
        """Whether its next tokens were known when it was admitted."""
        return self.num_launched_tokens < self.prefill_end

    @property
    def is_decoding(self) -> bool:
        """Whether a step can compute what was sampled last, or forced since, and sample one more.

        An end by length is foreseen; a stop token is not, and costs one row of one more step. What
        a step verifies may be several tokens or one, so it is read first.
        """
        if self.num_launched_tokens < self.prefill_end or self.request.prefill_only:
            return False
        num_unread = self.num_unread_tokens
        if num_unread and (
            self.follows_read_tokens or self.waits_for_tokens or self.num_unverified_tokens
        ):
            return False
        return len(self.token_ids) + num_unread < self.max_num_tokens

    @property
    def is_preemptible(self) -> bool:
        """Whether its blocks may be taken away: never while someone else may be reading them."""
        return not self.request.prefill_only

    def launch(self, num_new_tokens: int, row: int | None, num_proposed: int = 0) -> None:
        """Note that a step was launched that computes tokens.

        Args:
            num_new_tokens: how many.
            row: of the token that it samples, in the step's tokens; None if it samples none.
            num_proposed: how many of the new tokens, the last ones, are proposed.
        """
        self.num_launched_tokens += num_new_tokens - num_proposed
        self.num_unverified_tokens = num_proposed
        if row is not None:
            self.num_unread_tokens += 1
            self.unread_row = row

    def take_prompt_tokens(self, first_token: int, num_new_tokens: int) -> int:
        """Return how many of a chunk's tokens are no output of this engine and new to it."""
        end = first_token + num_new_tokens
        known = self.num_prompt_tokens + len(self.request.output_token_ids)
        num_first = max(0, min(end, known) - max(first_token, self.num_counted_tokens))
        self.num_counted_tokens = max(self.num_counted_tokens, end)
        return num_first

    def add_sibling(self) -> None:
        """Let one more sequence follow a beam; it has no blocks and no tokens yet."""
        sibling = copy.copy(self)
        sibling.siblings, sibling.block_ids, sibling.windowed = [], [], NO_BLOCKS
        sibling.compute_ns = 0
        self.siblings.append(sibling)

    def leave_siblings(self) -> None:
        """Forget the sequences of the other beams, which hold no blocks any more."""
        for sibling in self.siblings:
            sibling.state, sibling.has_ended = SequenceState.FINISHED, True
        self.siblings = []

    def restart_beams(self) -> None:
        """Search again from the prompt on: without its blocks a beam is worth no more."""
        if self.beams is not None:
            self.leave_siblings()
            self.beams.restart()
            del self.token_ids[self.num_prompt_tokens :]

    def leave_steps(self, state: SequenceState) -> None:
        """Enter a state in which nothing is sampled any more; device memory for it is dropped."""
        self.leave_siblings()
        self.state = state
        self.has_ended = self.has_ended or state is SequenceState.FINISHED
        self.guesses = None
        self.sampling_state.leave_device()
