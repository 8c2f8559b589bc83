"""A generation written down as OpenAI's response: whole, or as its events."""

import itertools
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import orjson

from pagoda_gateway import sse
from pagoda_gateway.dialects import BlockReader
from pagoda_gateway.errors import GatewayError, StorageFullError, UnavailableError
from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.logprobs import LogprobFormat
from pagoda_gateway.openai.serializer import Serializer, whole_output
from pagoda_gateway.responses.block_logprobs import BlockLogprobs, LoggedChange
from pagoda_gateway.responses.event_log import EventLog
from pagoda_gateway.responses.items import ItemForm, item, item_events
from pagoda_gateway.responses.schemas import SEALED, ResponsesBody
from pagoda_gateway.responses.tools import namespaced, shown
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.guard import CONTENT_FILTER
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence
from pagoda_gateway.text.tokenizer import ModelTokenizer

logger = logging.getLogger(__name__)

TOKENS_AT_ONCE = 256  # whose log probabilities are written before others have their turn
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
_CUTS = {"length": "max_output_tokens", CONTENT_FILTER: CONTENT_FILTER}


def failed(error: GatewayError) -> dict[str, Any]:
    """Return what differs in a response that has failed."""
    code = _CODES.get(error.status, "server_error")
    return {"status": "failed", "error": {"code": code, "message": str(error)}}


def numbered(event: dict[str, Any], number: int) -> bytes:
    """Return an event of a response."""
    return sse.named({**event, "sequence_number": number})


class ResponseSerializer(Serializer):
    """Writes the response that one sequence makes.

    Attributes:
        generation: whose answer this is.
        is_background: nobody waits for it.
        log: has its events, for those who read them later; None: nobody does.
    """

    def __init__(
        self,
        generation: Generation,
        form: AnswerForm,
        options: OutputOptions,
        tokenizer: ModelTokenizer,
        sent: ResponsesBody,
        keep: Callable[[dict[str, Any], EventLog | None], Awaitable[bool]],
    ) -> None:
        """Write `generation` down.

        Args:
            generation: whose answer this is.
            form: of the answer.
            options: of the output.
            tokenizer: the model's.
            sent: what it answers; much of it is repeated.
            keep: keeps a response that is whole, and one in the background before it has begun,
                with its log; returns whether it is kept.
        """
        assert form.new_parser is not None, "a chat's answers are read by a parser"
        (self._sequence,) = generation.sequences
        self.generation = generation
        self._form = form
        self._output = BlockReader(form.new_parser(), partial(form.new_call_id, "call_"))
        self._logprobs = _logprobs(generation, options, tokenizer, self._output)
        # Of each text, as JSON: an answer's are held to its end, and are much smaller so.
        self._entries: defaultdict[int, list[orjson.Fragment]] = defaultdict(list)
        self._sent = sent
        self._item_form = ItemForm(
            namespaced(sent.tools),
            summarises=sent.reasoning_summary is not None,
            seals=SEALED in (sent.include or ()),
        )
        self._keep = keep
        self._num_events = 0
        self._has_begun = False
        self.is_background = bool(sent.background)
        self.log = EventLog() if sent.background and sent.stream else None

    async def queued(self) -> dict[str, Any]:
        """Keep the response before it has begun; return it, with whether it is kept in `store`."""
        response = self._response("queued")
        response["store"] = await self._keep(response, self.log)
        if self.log is not None:
            for kind in ("response.created", "response.queued"):
                self._numbered({"type": kind, "response": response})
        return response

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the whole response; before it white space, while log probabilities are written."""
        for count, _ in enumerate(self._read(whole_output(self._sequence), is_last=True), 1):
            if count % TOKENS_AT_ONCE == 0:
                yield b" "
        yield orjson.dumps(await self._ended())

    def events(self, _sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """Return events of items; those of the first token begin the response."""
        events = []
        if not self._has_begun:
            response = self._response("in_progress")
            if not self._num_events:
                events.append({"type": "response.created", "response": response})
            events.append({"type": "response.in_progress", "response": response})
            self._has_begun = True
        request_id = self.generation.identity.request_id
        is_last = delta.finish_reason is not None
        for read in itertools.chain.from_iterable(self._read(delta, is_last=is_last)):
            index, is_end = read.change.block.index, read.change.kind == "end"
            events += item_events(
                read.change,
                request_id,
                self._item_status(index) if is_end else "in_progress",
                new_logprobs=read.entries,
                logprobs=self._entries[index] if is_end else (),
                form=self._item_form,
            )
        return [self._numbered(event) for event in events]

    async def end_events(self, receipt: dict[str, Any] | None) -> list[bytes]:
        """Return the whole response, and beside it the receipt if it is wanted."""
        response = await self._ended()
        event = {"type": f"response.{response['status']}", "response": response}
        return [self._last(event if receipt is None else {**event, "receipt": receipt})]

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """Return the response so far, and why there is no more of it."""
        response = self._response("in_progress") | failed(error)
        return [self._last({"type": "response.failed", "response": response})]

    def _read(self, delta: Delta, *, is_last: bool) -> Iterator[list[LoggedChange]]:
        """Yield what something new changes, and keep the log probabilities of texts."""
        if self._logprobs is None:
            yield [LoggedChange(c) for c in self._output.read(delta.text, is_last=is_last)]
            return
        for changes in self._logprobs.read(delta, is_last=is_last):
            for read in changes:
                entries = [orjson.Fragment(orjson.dumps(entry)) for entry in read.entries]
                self._entries[read.change.block.index] += entries
            yield changes

    def _numbered(self, event: dict[str, Any]) -> bytes:
        data = numbered(event, self._num_events)
        self._num_events += 1
        if self.log is not None:
            self.log.append(data)
        return data

    def _last(self, event: dict[str, Any]) -> bytes:
        data = numbered(event, self._num_events)
        if self.log is not None:
            self.log.end(data)
        return data

    async def _ended(self) -> dict[str, Any]:
        """Return the response; what the client is told of is kept, or says that it is not."""
        response = self._whole()
        try:
            response["store"] = await self._keep(response, self.log)
        except (UnavailableError, StorageFullError, TimeoutError) as error:
            logger.warning("%s is not kept: %r", response["id"], error)
            response["store"] = False
        return response

    def _whole(self) -> dict[str, Any]:
        cause = _CUTS.get(self._sequence.finish_reason or "")
        request_id = self.generation.identity.request_id
        return self._response("incomplete" if cause else "completed") | {
            "incomplete_details": {"reason": cause} if cause else None,
            "output": [
                item(
                    block,
                    request_id,
                    self._item_status(block.index),
                    self._entries[block.index],
                    form=self._item_form,
                )
                for block in self._output.blocks
            ],
            "usage": self._usage(),
        }

    def _item_status(self, index: int) -> str:
        """Return the status of an item that has ended: the last one may have been cut."""
        block = self._output.blocks[index]
        if block is not self._output.blocks[-1] or self._sequence.finish_reason not in _CUTS:
            return "completed"
        # The next one was cut.
        return "completed" if self._output.ends_with_a_call else "incomplete"

    def _response(self, status: str) -> dict[str, Any]:
        """Return a response without output."""
        generation, sent = self.generation, self._sent
        form = sent.text.format if sent.text else None
        text: dict[str, Any] = {"format": {"type": "text"}}
        if form is not None:
            text["format"] = form.model_dump(by_alias=True, exclude_none=True)
        if sent.text is not None and sent.text.verbosity is not None:
            text["verbosity"] = sent.text.verbosity
        return {
            "id": generation.identity.object_id,
            "object": "response",
            "created_at": int(generation.identity.arrived_unix_seconds),
            "status": status,
            "background": self.is_background,
            "conversation": {"id": sent.conversation_id} if sent.conversation_id else None,
            "error": None,
            "incomplete_details": None,
            "instructions": sent.instructions,
            "max_output_tokens": sent.max_output_tokens,
            "max_tool_calls": sent.max_tool_calls,
            "metadata": sent.metadata or {},
            "model": generation.model.full_name,
            "output": [],
            "parallel_tool_calls": sent.parallel_tool_calls is not False,
            "previous_response_id": sent.previous_response_id,
            "prompt_cache_key": sent.prompt_cache_key,
            "reasoning": {
                "effort": (sent.reasoning or {}).get("effort"),
                "summary": sent.reasoning_summary,
            },
            "safety_identifier": sent.safety_identifier,
            "store": sent.store is not False,
            "temperature": _as_said(self._sequence.sampling.temperature),
            "text": text,
            "tool_choice": sent.tool_choice or "auto",
            "tools": shown(sent.tools),
            "top_logprobs": sent.top_logprobs or 0,
            "top_p": _as_said(self._sequence.sampling.top_p),
            "truncation": sent.truncation or "disabled",
            "usage": None,
            "user": sent.user,
        }

    def _usage(self) -> dict[str, Any]:
        num_prompt = self.generation.num_prompt_tokens
        token_ids = self._sequence.token_ids
        num_cached, _ = self.generation.cached_tokens()
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": 0},
            "output_tokens": len(token_ids),
            "output_tokens_details": {
                "reasoning_tokens": self._form.num_reasoning_tokens(token_ids)
            },
            "total_tokens": num_prompt + len(token_ids),
        }


def _logprobs(
    generation: Generation, options: OutputOptions, tokenizer: ModelTokenizer, output: BlockReader
) -> BlockLogprobs | None:
    """Return what reads the log probabilities of a generation's output; None: none are wanted."""
    if options.num_logprobs is None:
        return None
    detokenizer = tokenizer.detokenizer(
        generation.sequences[0].prompt.token_ids,
        skip_special_tokens=options.skip_special_tokens,
        kept=options.kept_token_ids,
    )
    form = LogprobFormat(tokenizer, tokens_as_ids=options.tokens_as_ids)
    return BlockLogprobs(output, detokenizer, form, options.num_logprobs)


def _as_said(value: float) -> float:
    """Return a number as somebody wrote it: the engine's has the nearest of 32 bits."""
    return float(f"{value:.7g}")
