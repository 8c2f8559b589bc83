"""One output sequence as its frames arrive: each index once, whole characters, stop strings.

Knows no HTTP and no NATS. Frames of older attempts are dropped; those that come too early wait. An
attempt whose repeated index carries another token than the one taken is lost: what it makes from
there on would not continue what the client has.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from pagoda.rpc.v1 import generate_pb2, route_pb2
from pagoda_gateway.sequences.output.delivery import Delivery
from pagoda_gateway.sequences.output.guard import CONTENT_FILTER, OutputGuard
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.prompt_logprobs import PromptLogprobs
from pagoda_gateway.sequences.output.repetition import DETECTED, REPETITION
from pagoda_gateway.sequences.output.text import OutputText
from pagoda_gateway.text.prompts import Prompt
from pagoda_gateway.text.tokenizer import ModelTokenizer

MAX_EARLY_FRAMES = 4096
_LENGTH = generate_pb2.FINISH_REASON_LENGTH
_ENDS = {generate_pb2.FINISH_REASON_STOP, _LENGTH}
_NO_FAILURES = {generate_pb2.FINISH_REASON_UNSPECIFIED, *_ENDS}
_STAGE_NAMES = tuple(generate_pb2.StageTimes.DESCRIPTOR.fields_by_name)


@dataclass(slots=True)
class Delta:
    """What is new since the last read."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[generate_pb2.PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None


class OutputSequence:
    """State of one sequence. Frames go in with `take`; text comes out with `read`.

    The outputs of a beam search are several sequences, but one on a worker: the first is placed and
    leads, the others follow. All of them have nothing before the end.
    """

    __slots__ = (  # more attributes than objects have within: each token would look into a dict
        "_asking", "_clock", "_early", "_followers", "_gap_timeout_seconds", "_gap_timer",
        "_has_read_finish", "_heard_seconds", "_is_text_only", "_logprobs", "_needs_attention",
        "_num_read", "_on_change", "_options", "_reads_text", "_shows_tokens",
        "_speculated_before", "_text", "attempt", "attention",
        "cached", "delivery", "embedding", "error", "finish_reason", "first_token_seconds", "guard",
        "has_progressed", "index", "is_ended_by_worker", "is_handed_over", "is_own_fault",
        "is_search", "last_token_seconds", "leader", "lost_reason", "matched_stop",
        "num_accepted_tokens", "num_brought", "num_delivered", "num_proposed_tokens",
        "num_strikes", "progress", "prompt", "prompt_logprobs", "route", "sampling", "stages",
        "token_ids", "worker_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        index: int,
        prompt: Prompt,
        sampling: generate_pb2.SamplingParams,
        options: OutputOptions,
        tokenizer: ModelTokenizer,
        on_change: Callable[[int], None],
        gap_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        guard: OutputGuard | None = None,
    ) -> None:
        """Start empty.

        Args:
            index: prompt index * num_choices + choice.
            prompt: what the model sees.
            sampling: as the engine takes it, seed included.
            options: of the request.
            tokenizer: of the model.
            on_change: called with the tokens that wait when there is something to read.
            gap_timeout_seconds: how long missing tokens may be missing.
            clock: seconds; for time to first token.
            guard: what its text goes through; None: it goes out as it is.
        """
        self.index = index
        self.is_search = sampling.HasField("beam_search")  # its worker finds several outputs
        self.leader: OutputSequence | None = None
        self._followers: list[OutputSequence] = []
        self.prompt = prompt
        self.sampling = sampling
        self.guard = guard
        self.token_ids: list[int] = []
        self.prompt_logprobs: PromptLogprobs | None = None
        if sampling.HasField("num_prompt_logprobs"):
            self.prompt_logprobs = PromptLogprobs(len(prompt.token_ids))
        self.embedding = b""  # of the prompt, once finished, where it is asked for
        self.num_brought = 0  # tokens up to the end of the last frame: may be behind a stop string
        self.num_delivered = 0  # tokens whose text the client got: see `note_delivered`
        self.delivery: Delivery | None = None  # where that is noted for others
        self.finish_reason: str | None = None
        self.matched_stop: str | int | None = None
        self.cached: generate_pb2.CachedTokens | None = None
        self.stages = dict.fromkeys(_STAGE_NAMES, 0.0)
        self.num_proposed_tokens = 0  # verified, in all attempts
        self.num_accepted_tokens = 0  # of them, those that the workers output
        self._speculated_before = (0, 0)  # of both, in earlier attempts
        self.first_token_seconds: float | None = None
        self.last_token_seconds: float | None = None
        self.attempt = 0
        self.route: route_pb2.RouteResponse | None = None  # of the attempt with the first token
        self.worker_id = ""  # decode worker of this attempt; empty while unplaced
        self.is_handed_over = False  # a worker has accepted this attempt
        self._asking: asyncio.Timeout | None = None
        self.num_strikes = 0  # bad answers about it since it was last heard of
        self.has_progressed = False  # this attempt has brought a token
        self.progress = asyncio.Event()  # set with it, and with `attention`
        self.is_ended_by_worker = False
        self.lost_reason: str | None = None
        self.error: str | None = None
        self.is_own_fault = False  # the error is the request's own, on every worker
        self.attention = asyncio.Event()  # finished, lost or failed: its driver must act
        self._needs_attention = False  # it is set
        self._text = OutputText(prompt.token_ids, tokenizer, options, guard)
        self._is_text_only = (
            guard is None
            and not options.stops
            and options.repetition is None
            and options.num_engine_logprobs is None
            and self.prompt_logprobs is None
        )
        self._shows_tokens = options.return_token_ids or options.num_logprobs is not None
        self._reads_text = (
            guard is None and not self._shows_tokens and options.num_engine_logprobs is None
        )
        self._options = options
        self._on_change = on_change
        self._gap_timeout_seconds = gap_timeout_seconds
        self._clock = clock
        self._early: dict[int, generate_pb2.Frame] = {}
        self._gap_timer: asyncio.TimerHandle | None = None
        self._logprobs: list[generate_pb2.PositionLogprobs] = []
        self._num_read = 0
        self._has_read_finish = False
        self._heard_seconds = clock()

    @property
    def silent_seconds(self) -> float:
        """How long nothing was heard of it: no frame, no good answer of its worker."""
        return self._clock() - self._heard_seconds

    @property
    def is_finished(self) -> bool:
        """Whether no token will follow."""
        return self.finish_reason is not None

    @property
    def is_settled(self) -> bool:
        """Whether no token and no text will follow."""
        return self.finish_reason is not None and (self.guard is None or not self.guard.is_pending)

    @property
    def num_unread(self) -> int:
        """Tokens taken but not read yet."""
        return max(0, len(self.token_ids) - self._num_read)

    @property
    def num_shown(self) -> int:
        """Tokens of which nothing is held back of what was read."""
        if self.guard is None or self.is_settled or self._shows_tokens:
            return len(self.token_ids)
        return self._text.num_shown

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose KV was reused, never more than the prompt has."""
        cached = self.cached
        total = cached.device + cached.cpu + cached.nvme if cached else 0
        return min(total, len(self.prompt.token_ids))

    def follow(self, leader: "OutputSequence") -> None:
        """Take what the leader's worker finds for this one too."""
        self.leader = leader
        leader._followers.append(self)

    def begin_attempt(self, attempt: int) -> None:
        """Take frames of this attempt only, from now on."""
        self.attempt = attempt
        self._speculated_before = self.num_proposed_tokens, self.num_accepted_tokens
        self.worker_id = ""
        self.is_handed_over = False
        self.has_progressed = self.is_ended_by_worker = False
        self.lost_reason = self.error = None
        self.attention.clear()
        self._needs_attention = False
        self.progress.clear()
        self._early.clear()
        self._stop_gap_timer()
        self.hear()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Ask a worker to accept this attempt, as long as it is not lost.

        Raises:
            TimeoutError: it was lost meanwhile.
        """
        try:
            async with asyncio.timeout(None) as self._asking:
                yield
        finally:
            self._asking = None

    def hand_over(self) -> None:
        """A worker has accepted this attempt: from now on its silence means something."""
        self.is_handed_over = True
        self.hear()

    def hear(self) -> None:
        """Something was heard of it."""
        self._heard_seconds = self._clock()
        self.num_strikes = 0

    def lose(self, reason: str) -> None:
        """Give up on this attempt's worker; the driver starts another attempt."""
        if not self.is_finished and self.error is None and self.lost_reason is None:
            self.lost_reason = reason
            self._call_for_attention()
            if self._asking is not None:
                self._asking.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Take nothing more."""
        self._stop_gap_timer()
        self._early.clear()

    def release(self) -> None:
        """Tell nobody anything any more, and know no other sequence."""
        self._on_change = _tell_nobody
        self.leader = None
        self._followers.clear()
        if self.delivery is not None:
            self.delivery.end()
            self.delivery = None

    def note_delivered(self, num_tokens: int) -> None:
        """Say that the client got the text of so many tokens; for whoever sends it."""
        self.num_delivered = num_tokens
        if self.delivery is not None:
            self.delivery.note(num_tokens)

    def take(self, frame: generate_pb2.Frame) -> None:
        """Take one frame; old or lost attempts and known indices change nothing."""
        if frame.attempt != self.attempt or self._needs_attention:
            return
        self._heard_seconds, self.num_strikes = self._clock(), 0
        if frame.num_proposed_tokens:
            self._note_speculation(frame)
        first_index, known_ids = frame.first_index, self.token_ids
        if (
            self._is_text_only
            and first_index == len(known_ids)
            and self.has_progressed
            and self.cached is not None
            and not self._early
            and not frame.finish_reason
        ):  # nearly every frame: one token more, and nothing else can be in it
            self.last_token_seconds = self._heard_seconds
            for token_id in frame.token_ids[:]:  # a list: the field's own iterator is slow
                known_ids.append(token_id)
                self._text.push_plain(token_id)
            self._on_change(len(known_ids) - self._num_read)
            return
        if self.is_search:
            self._take_hypotheses(frame)
            return
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.take(frame)
        if first_index > len(known_ids):
            self._keep_early(frame)
            return
        self._apply(frame)
        while self._early and not self.attention.is_set():
            first = min(self._early)
            if first > len(self.token_ids):
                break
            self._apply(self._early.pop(first))
        if not self._early:
            self._stop_gap_timer()
        self._on_change(self.num_unread)

    def read_text(self) -> str | None:
        """Return new text if nothing else is new that anybody sees; None: `read` says what is."""
        if not self._reads_text or self.finish_reason is not None:
            return None
        num_tokens = len(self.token_ids)
        if num_tokens == self._num_read and not self._text.pieces:
            return None
        self._num_read = num_tokens
        return self._text.read()

    def read(self) -> Delta | None:
        """Return what is new, or None. The finish reason is returned once, with the last text."""
        is_settled = self.is_settled
        is_new = self.num_unread or self._text.pieces
        if not (is_new or (is_settled and not self._has_read_finish)):
            return None
        delta = Delta(
            text=self._text.read(),
            token_ids=self.token_ids[self._num_read :],
            logprobs=self._logprobs,
            finish_reason=self.finish_reason if is_settled else None,
        )
        self._num_read = len(self.token_ids)
        self._logprobs = []
        self._has_read_finish = is_settled
        return delta

    def _apply(self, frame: generate_pb2.Frame) -> None:
        # Most frames bring one token and no more: what is rare is asked for only where it can be.
        frame_ids = frame.token_ids
        skip = len(self.token_ids) - frame.first_index
        if skip and self._contradicts(frame):
            return
        self.num_brought = frame.first_index + len(frame_ids)
        new_ids = frame_ids[skip:] if skip else frame_ids
        is_at_end = skip <= len(frame_ids)
        reason = frame.finish_reason if is_at_end else generate_pb2.FINISH_REASON_UNSPECIFIED
        if not new_ids and not reason:
            return
        scores = self.prompt_logprobs
        if scores is not None and not scores.is_complete and reason in _NO_FAILURES:
            self.lose("log probabilities of its prompt never came")
            return
        if reason or self.cached is None or not self.has_progressed:
            self._note_metadata(frame)
        if new_ids:
            self._note_times()
        matched_id = None
        if reason and frame.HasField("matched_stop_token_id"):
            matched_id = frame.matched_stop_token_id
        is_stop = reason == generate_pb2.FINISH_REASON_STOP
        logprobs = frame.logprobs if self._options.num_engine_logprobs is not None else ()
        for position, token_id in enumerate(new_ids, start=skip):
            is_last = position == len(frame_ids) - 1
            hide = is_stop and is_last and token_id == matched_id and not self._options.include_stop
            self.token_ids.append(token_id)
            self._text.push(token_id, len(self.token_ids), hide=hide)
            if position < len(logprobs):
                self._logprobs.append(logprobs[position])
            is_blocked = self.guard is not None and self.guard.is_blocked
            if is_blocked or self._text.matched_stop is not None:
                self.is_ended_by_worker = is_last and bool(reason)
                self._finish("stop", self._text.matched_stop)
                return
            if not (is_last and reason) and self._repeats():
                self._text.show_rest()
                self._finish(REPETITION, DETECTED)
                return
        if reason:
            self.embedding = frame.embedding
            self._end(reason, frame.error, matched_id)

    def _take_hypotheses(self, frame: generate_pb2.Frame) -> None:
        """Let each sequence of a search have its own output; the leader the last."""
        sequences = [self, *self._followers]
        if frame.finish_reason not in _NO_FAILURES:
            self._apply(frame)
        elif len(frame.hypotheses) != len(sequences):
            self.lose(f"{len(frame.hypotheses)} outputs came of a search for {len(sequences)}")
        elif {hypothesis.finish_reason for hypothesis in frame.hypotheses} - _ENDS:
            self.lose("an output of its search has not ended")
        else:
            pairs = list(zip(sequences, frame.hypotheses, strict=True))
            for sequence, hypothesis in reversed(pairs):
                part = generate_pb2.Frame(
                    token_ids=hypothesis.token_ids,
                    logprobs=hypothesis.logprobs,
                    finish_reason=hypothesis.finish_reason,
                )
                if hypothesis.HasField("matched_stop_token_id"):
                    part.matched_stop_token_id = hypothesis.matched_stop_token_id
                if sequence is self:
                    part.cached.CopyFrom(frame.cached)
                    part.stages.CopyFrom(frame.stages)
                sequence._apply(part)
                sequence.is_ended_by_worker = True  # also where a stop string has cut it
                sequence._on_change(sequence.num_unread)

    def _contradicts(self, frame: generate_pb2.Frame) -> bool:
        """Lose the attempt if the frame repeats an index with another token.

        A decode worker whose prefill worker failed after publishing the first token samples that
        token again; in bf16 a batch of another shape may make it another one.
        """
        known_ids = self.token_ids[frame.first_index :]
        for index, (known, other) in enumerate(
            zip(known_ids, frame.token_ids, strict=False), start=frame.first_index
        ):
            if known != other:
                self.lose(f"token {index} came again as {other}, not {known}")
                return True
        return False

    def _end(self, reason: int, error: str, matched_id: int | None) -> None:
        self.is_ended_by_worker = True
        if reason in (generate_pb2.FINISH_REASON_ERROR, generate_pb2.FINISH_REASON_INVALID):
            self.is_own_fault = reason == generate_pb2.FINISH_REASON_INVALID
            self.error = error or "the worker gave no reason"
            self._call_for_attention()
        elif reason not in _ENDS:  # it was aborted, or this is no reason
            self.lose(f"the worker ended the sequence with finish reason {reason}")
        else:
            self._text.show_rest()
            matched = self._text.matched_stop
            self._finish(
                "length" if reason == _LENGTH and matched is None else "stop",
                matched_id if matched is None else matched,
            )

    def _repeats(self) -> bool:
        """Return whether it says the same again and again, as the request has it."""
        repetition, num_tokens = self._options.repetition, len(self.token_ids)
        if repetition is None or num_tokens < self._options.min_tokens:
            return False
        return repetition.ends(self.token_ids)

    def on_judged(self) -> None:
        """The guard has judged more of the text."""
        guard = self.guard
        assert guard is not None, "nobody else calls"
        self._text.add(guard.shown())
        if guard.is_blocked and not self.is_finished:
            self._finish(CONTENT_FILTER, None)
        elif guard.is_blocked:
            self.finish_reason, self.matched_stop = CONTENT_FILTER, None
        self._text.keep_shown(self.token_ids)
        self._on_change(self.num_unread)

    def _finish(self, reason: str, matched: str | int | None) -> None:
        if self.guard is not None:
            self._text.add(self.guard.flush())
            if self.guard.is_blocked:
                reason, matched = CONTENT_FILTER, None
        self._text.keep_shown(self.token_ids)
        self.finish_reason = reason
        self.matched_stop = matched
        self.close()
        self._call_for_attention()

    def _call_for_attention(self) -> None:
        self._needs_attention = True
        self.attention.set()
        self.progress.set()

    def _note_metadata(self, frame: generate_pb2.Frame) -> None:
        if self.cached is None and frame.HasField("cached"):
            self.cached = frame.cached
        if frame.HasField("stages"):
            for name in _STAGE_NAMES:
                self.stages[name] += max(0.0, getattr(frame.stages, name))  # 0 for a NaN

    def _note_speculation(self, frame: generate_pb2.Frame) -> None:
        """Frames count from the attempt's beginning on, and may come in any order."""
        proposed, accepted = self._speculated_before
        proposed += frame.num_proposed_tokens
        accepted += frame.num_accepted_tokens
        self.num_proposed_tokens = max(self.num_proposed_tokens, proposed)
        self.num_accepted_tokens = max(self.num_accepted_tokens, accepted)

    def _note_times(self) -> None:
        self.has_progressed = True
        self.progress.set()
        self.last_token_seconds = self._clock()
        if self.first_token_seconds is None:
            self.first_token_seconds = self.last_token_seconds

    def _keep_early(self, frame: generate_pb2.Frame) -> None:
        if len(self._early) >= MAX_EARLY_FRAMES:
            self.lose(f"tokens from index {len(self.token_ids)} on are missing")
            return
        self._early[frame.first_index] = frame
        if self._gap_timer is None:
            loop = asyncio.get_running_loop()
            reason = f"tokens from index {len(self.token_ids)} on never came"
            self._gap_timer = loop.call_later(self._gap_timeout_seconds, self.lose, reason)

    def _stop_gap_timer(self) -> None:
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None


def _tell_nobody(_num_unread: int) -> None:
    pass
