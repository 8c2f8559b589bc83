"""Sequences that decode while prompts arrive at fixed times: what users of a busy engine see."""

import queue
import time
from collections.abc import Sequence

from support.engine_driver import make_request

from gpu.model.imported_sequences import (
    BLOCK_SIZE,
    import_request,
    random_tokens,
    start_imported,
)
from gpu.transfer.subject import Fetch, TransferSubject
from pagoda_engine import SamplingParams, SequenceRequest, StepResult


class Arrivals:
    """A batch that decodes, and prompts that come at fixed times whoever has finished."""

    def __init__(self, subject: TransferSubject, way: str) -> None:
        self._subject = subject
        self._engine = subject.engine
        self._way = way
        scale = subject.scale
        self._decoding = [f"decode-{way}-{i}" for i in range(scale.batch)]
        num_prompts = round(scale.seconds / scale.arrival_seconds)
        self._requests = [
            prompt_request(subject, f"prompt-{way}-{i}", 100 + i, is_import=way != "none")
            for i in range(num_prompts)
        ]
        self._added: dict[str, tuple[float, SequenceRequest]] = {}
        self._num_asked = 0
        self.gaps: list[float] = []
        self.ttft: list[float] = []
        self.fetches: list[Fetch] = []
        self._start_decodes()

    def decode(self) -> None:
        """Step for as long as prompts arrive."""
        scale = self._subject.scale
        waiting = list(reversed(self._requests))
        decoding = set(self._decoding)
        started = last = now = time.perf_counter()
        while now - started < scale.seconds and len(self.gaps) < scale.max_output_tokens - 4:
            due = started + scale.arrival_seconds * (len(self._added) + 0.5)
            if waiting and time.perf_counter() >= due:
                request = waiting.pop()
                self._added[request.sequence_id] = (time.perf_counter(), request)
                self._engine.add(request)
            self._take_arrived()
            result = self._engine.step()
            now = time.perf_counter()
            for reserved in result.reserved:
                self._ask(reserved.sequence_id, reserved.block_ids)
            if self._way == "none":
                self._note_first_tokens(result, now)
            if decoding <= {output.sequence_id for output in result.outputs}:
                self.gaps.append(now - last)
                last = now
        assert self.gaps, "nothing was decoded"

    def end(self) -> None:
        """Wait for what is under way, then end every sequence."""
        while len(self.fetches) < self._num_asked:
            self._take(self._subject.wait())
        for sequence_id in (*self._decoding, *self._added):
            self._engine.abort(sequence_id)
        while self._engine.has_work():
            self._engine.step()

    def _start_decodes(self) -> None:
        scale, vocab_size = self._subject.scale, self._subject.shape.vocab_size
        seed = self._subject.setting.seed
        sampling = SamplingParams(
            max_tokens=scale.max_output_tokens, temperature=0.0, ignore_eos=True
        )
        requests = [
            import_request(name, random_tokens(scale.context - 1, vocab_size, seed + i), sampling)
            for i, name in enumerate(self._decoding)
        ]
        start_imported(self._engine, requests)
        for _ in range(4):
            self._engine.step()

    def _note_first_tokens(self, result: StepResult, now: float) -> None:
        for output in result.outputs:
            added = self._added.get(output.sequence_id)
            if added is not None and output.token_ids and output.first_index == 0:
                self.ttft.append(now - added[0])

    def _ask(self, sequence_id: str, block_ids: Sequence[int]) -> None:
        if self._way == "none":
            return
        request = self._added[sequence_id][1]
        self._num_asked += 1
        self._subject.prefill(
            sequence_id, list(request.prompt_token_ids), block_ids, way=self._way, by_layers=True
        )

    def _take_arrived(self) -> None:
        while True:
            try:
                fetch = self._subject.arrived.get_nowait()
            except queue.Empty:
                return
            if isinstance(fetch, Exception):
                raise fetch
            self._take(fetch)

    def _take(self, fetch: Fetch) -> None:
        self.fetches.append(fetch)
        self._subject.release(fetch.transfer_id)
        self.ttft.append(fetch.token_at - self._added[fetch.transfer_id][0])
        assert fetch.token_id is not None
        self._engine.import_finished(
            fetch.transfer_id,
            num_computed_tokens=self._subject.scale.prompt_length,
            first_token_id=fetch.token_id,
        )


def prompt_request(
    subject: TransferSubject, sequence_id: str, number: int, *, is_import: bool
) -> SequenceRequest:
    """Return a long prompt; the same for the same number."""
    # Two tokens: the peer's, and one that proves that this engine can go on.
    sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    prompt = random_tokens(
        subject.scale.prompt_length,
        subject.shape.vocab_size,
        subject.setting.seed * 10_007 + number,
    )
    if is_import:
        return import_request(sequence_id, prompt, sampling)
    return make_request(sequence_id, prompt, block_size=BLOCK_SIZE, sampling=sampling)
