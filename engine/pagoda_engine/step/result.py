"""What one engine step did, as values: the caller publishes, exports and counts from it."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pagoda_engine.sampling.beam_search import Hypothesis
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_engine.scheduler.limits import Limits
from pagoda_engine.scheduler.resumption import Preemption, Resumption


class FinishReason(enum.Enum):
    """Why a sequence ended.

    INVALID: the request itself is to blame, so no other engine can serve it.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    INVALID = "invalid"


class SequenceOutput(NamedTuple):
    """New tokens of one sequence; ``first_index`` is the output index of ``token_ids[0]``.

    There are several where a grammar leaves no choice after a token, and where proposed tokens were
    right. An imported first token is not reported, but what a grammar forces after it is.

    Logprobs of the prompt come as it is computed, in outputs without tokens, from prompt token
    ``first_prompt_index`` on; what a preempted sequence computes again comes again.

    The embedding of a prompt comes with the end: float32, little endian, of length 1.

    So do the ``hypotheses`` of a beam search, the best first; it has no other tokens. An output
    with neither tokens, logprobs nor a finish_reason says that the prompt of one is computed; again
    if it has to begin again.

    ``compute_ns``, ``num_prefilled_tokens`` and ``num_proposed_tokens`` are what was computed for
    the sequence up to here, ``num_accepted_tokens`` what of the latter is output; outputs of the
    prompt's logprobs do not say it.

    ``limits`` come with the first token behind a prompt and with the end: why chunks of the prompt,
    and proposals, had no more tokens, as often as they did (see `scheduler.limits`).

    A sequence's last output has ``finish_reason``; it may carry no token (abort, error, invalid,
    max_tokens 0, or the end by an imported first token). The one token of a ``prefill_only``
    sequence has a finish_reason only if the output really ends with it (a stop token, or max_tokens
    reached): else it is None and another engine goes on.

    A tuple, since a step makes one for each of its rows: a frozen dataclass takes three times as
    long to make.
    """

    sequence_id: str
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    matched_stop_token_id: int | None = None
    error: str = ""
    first_prompt_index: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: bytes = b""
    hypotheses: tuple[Hypothesis, ...] = ()
    compute_ns: int = 0
    num_prefilled_tokens: int = 0
    num_proposed_tokens: int = 0
    num_accepted_tokens: int = 0
    limits: tuple[Limits, Limits] | None = None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks were allocated for a sequence: all of its prompt, and the cached prefix is shared.

    Attributes:
        sequence_id: whose blocks these are.
        block_ids: physical block for each logical prompt block. The sequence owns them until it
            ends.
        num_cached_tokens: leading tokens whose KV is here already (whole blocks). For
            KvSource.IMPORT the caller writes logical blocks from ``num_cached_tokens //
            block_size`` on; blocks before it are shared: never write.
        num_null_blocks: leading blocks that are not reserved: no query sees their tokens, because
            every layer has a window. Their ids mean nothing: neither read nor write.
        num_partial_blocks: leading blocks of which only `KvLayout.first_part` is to be written:
            layers with windows do not see their tokens.
        waited_for: what it lacked while it was first in its tenant's line; empty: it never was, or
            was let in at once.
    """

    sequence_id: str
    block_ids: tuple[int, ...]
    num_cached_tokens: int
    num_null_blocks: int = 0
    num_partial_blocks: int = 0
    waited_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """KV of a ``prefill_only`` sequence that this step completed.

    These are the logical blocks [first_block, first_block + len(block_ids)). Only whole blocks,
    except in the step that samples the token: it adds the last, partly filled block. The blocks
    stay unchanged until `Engine.release`, so another thread may read them. Blocks that were a
    device prefix hit are included in the first event of their sequence. Ids of blocks before
    ``first_export_block`` mean nothing. Of the first `num_partial` blocks, whose tokens the layers
    with windows will not see again, only `KvLayout.first_part` has a reader.
    """

    sequence_id: str
    first_block: int
    block_ids: tuple[int, ...]
    num_partial: int = 0


@dataclass(frozen=True, slots=True)
class ComputedLayers:
    """KV of some layers of what a later `ComputedBlocks` will name, while the rest is computed.

    A hint: who sends these layers early has less to send in the end.

    Attributes:
        sequence_id: whose blocks these are.
        first_block: as in ComputedBlocks.
        block_ids: as in ComputedBlocks.
        first_layer: the first layer whose KV is there.
        num_layers: how many of them.
        wait: blocks the calling thread until the device has written them.
    """

    sequence_id: str
    first_block: int
    block_ids: tuple[int, ...]
    first_layer: int
    num_layers: int
    wait: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StepStats:
    """Sizes and times of one step; all zero when it only did bookkeeping.

    Where the device works asynchronously, a step's host times lie beside the device's times of the
    step before, so they do not add up to the time between two steps: `seconds` does.

    Attributes:
        num_sequences: in the batch.
        num_prefill_tokens: new tokens of prompts, and those that grammars forced.
        num_decode_tokens: one for each decode.
        num_proposed_tokens: that it verified.
        num_accepted_tokens: of them, those that were right.
        num_forced_tokens: of ``num_prefill_tokens``, those that grammars forced.
        num_resumed_tokens: of them, those computed again after a preemption.
        num_failed_over_tokens: of them, those of sequences that had output elsewhere before.
        num_context_tokens: KV tokens read, all sequences.
        num_prefill_context_tokens: of them, those read for prompts.
        num_attended_tokens: what each of the prompts' tokens attends to, summed up.
        num_preempted: sequences that lost their blocks since the last result.
        given_up_seconds: that a step took which another tenant's newcomer cut short.
        started: the engine's clock when the host began to schedule.
        schedule_seconds: host: choosing the batch.
        draft_seconds: of that, what a draft model took to propose tokens or to compute a prompt.
        launch_seconds: host: preparing the inputs and queueing the work.
        forward_seconds: device: the model.
        sample_seconds: device: the choice of tokens.
        wait_seconds: host: blocked until the device was done.
        commit_seconds: host: turning tokens into outputs.
        gap_seconds: device: idle since the previous step's work; 0 after an idle engine.
        is_graph: the forward was the replay of a captured graph.
        unclaimed_ns: of `compute_ns`, when all its sequences had ended before it was read; else 0,
            and they have shared it.
    """

    num_sequences: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_proposed_tokens: int = 0
    num_accepted_tokens: int = 0
    num_forced_tokens: int = 0
    num_resumed_tokens: int = 0
    num_failed_over_tokens: int = 0
    num_context_tokens: int = 0
    num_prefill_context_tokens: int = 0
    num_attended_tokens: int = 0
    num_preempted: int = 0
    given_up_seconds: float = 0.0
    started: float = 0.0
    schedule_seconds: float = 0.0
    draft_seconds: float = 0.0
    launch_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    wait_seconds: float = 0.0
    commit_seconds: float = 0.0
    gap_seconds: float = 0.0
    is_graph: bool = False
    unclaimed_ns: int = 0

    @property
    def seconds(self) -> float:
        """What the step added to the time of a busy engine."""
        return self.gap_seconds + self.forward_seconds + self.sample_seconds

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of prompts that were computed for the first time."""
        again = self.num_resumed_tokens + self.num_failed_over_tokens
        return self.num_prefill_tokens - self.num_forced_tokens - again

    @property
    def compute_ns(self) -> int:
        """The same in nanoseconds, which its sequences share."""
        return round(1e9 * self.seconds)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Everything a step changed that the world outside the engine must know.

    Attributes:
        reserved: sequences admitted this step, each named once: not again after a preemption.
            Those with another KvSource than COMPUTE now wait for `import_finished`.
        preempted: sequences that lost their blocks.
        resumed: of these, those that have blocks again. Those with anything to be fetched now wait
            for `import_finished`.
        outputs: new tokens and ends.
        computed: KV ready for export.
        stored: (block hash, block id) of blocks that became reusable.
        partial: ids of those in ``stored`` that lack parts, since layers with windows will not read
            them again: nobody else can use their bytes.
        evicted: block hashes that are no longer here; none of them is in ``stored`` too.
        stats: of the step that was read; see StepStats.
        seconds: that the call took, whose scheduling admitted what ``reserved`` names.
    """

    reserved: tuple[Reservation, ...] = ()
    preempted: tuple[Preemption, ...] = ()
    resumed: tuple[Resumption, ...] = ()
    outputs: tuple[SequenceOutput, ...] = ()
    computed: tuple[ComputedBlocks, ...] = ()
    stored: tuple[tuple[bytes, int], ...] = ()
    partial: frozenset[int] = frozenset()
    evicted: tuple[bytes, ...] = ()
    stats: StepStats = field(default_factory=StepStats)
    seconds: float = 0.0
