"""A generation written down as OpenAI's response: whole, or as its events."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pagoda_gateway import sse
from pagoda_gateway.dialects import BlockReader
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.serializer import Serializer, whole_output
from pagoda_gateway.responses.items import item, item_events
from pagoda_gateway.responses.schemas import ResponsesBody
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output_guard import CONTENT_FILTER
from pagoda_gateway.sequences.output_sequence import Delta, OutputSequence

_CUTS = {"length": "max_output_tokens", CONTENT_FILTER: CONTENT_FILTER}


def failed(error: GatewayError) -> dict[str, Any]:
    """Return what differs in a response that has failed."""
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    return {"status": "failed", "error": {"code": code, "message": str(error)}}


class ResponseSerializer(Serializer):
    """Writes the response that one sequence makes.

    Attributes:
        generation: whose answer this is.
        is_background: nobody waits for it.
    """

    def __init__(
        self,
        generation: Generation,
        form: AnswerForm,
        sent: ResponsesBody,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        """Write `generation` down.

        Args:
            generation: whose answer this is.
            form: of the answer.
            sent: what it answers; much of it is repeated.
            keep: gets a response that is whole, and what one in the background has become.
        """
        assert form.new_parser is not None, "a chat's answers are read by a parser"
        (self._sequence,) = generation.sequences
        self.generation = generation
        self._form = form
        self._output = BlockReader(form.new_parser(), partial(form.new_call_id, "call_"))
        self._sent = sent
        self._keep = keep
        self._num_events = 0
        self.is_background = bool(sent.background)

    def queued(self) -> dict[str, Any]:
        """Return the response before it has begun; it is kept."""
        response = self._response("queued")
        self._keep(response)
        return response

    def body(self) -> dict[str, Any]:
        """Return the whole response."""
        self._output.read(whole_output(self._sequence).text, is_last=True)
        return self._ended()

    def events(self, _sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """Return events of items; those of the first token begin the response."""
        events = []
        if not self._num_events:
            response = self._response("in_progress")
            for kind in ("response.created", "response.in_progress"):
                events.append({"type": kind, "response": response})
        for change in self._output.read(delta.text, is_last=delta.finish_reason is not None):
            index = change.block.index
            status = self._item_status(index) if change.kind == "end" else "in_progress"
            events += item_events(change, self.generation.identity.request_id, status)
        return [self._numbered(event) for event in events]

    def end_events(self, receipt: dict[str, Any] | None) -> list[bytes]:
        """Return the whole response, and beside it the receipt if it is wanted."""
        response = self._ended()
        event = {"type": f"response.{response['status']}", "response": response}
        return [self._numbered(event if receipt is None else {**event, "receipt": receipt})]

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """Return the response so far, and why there is no more of it."""
        response = self._response("in_progress") | failed(error)
        return [self._numbered({"type": "response.failed", "response": response})]

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the error; of a response in the background it is all that will be found."""
        if self.is_background:
            self._keep(self._response("queued") | failed(error))
        return error.body()

    def _numbered(self, event: dict[str, Any]) -> bytes:
        number = self._num_events
        self._num_events += 1
        return sse.named({**event, "sequence_number": number})

    def _ended(self) -> dict[str, Any]:
        cause = _CUTS.get(self._sequence.finish_reason or "")
        request_id = self.generation.identity.request_id
        response = self._response("incomplete" if cause else "completed") | {
            "incomplete_details": {"reason": cause} if cause else None,
            "output": [
                item(block, request_id, self._item_status(block.index))
                for block in self._output.blocks
            ],
            "usage": self._usage(),
        }
        self._keep(response)
        return response

    def _item_status(self, index: int) -> str:
        """Return the status of an item that has ended: the last one may have been cut."""
        is_last = index == len(self._output.blocks) - 1
        is_cut = is_last and self._sequence.finish_reason in _CUTS
        return "incomplete" if is_cut else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        """Return a response without output."""
        generation, sent = self.generation, self._sent
        form = sent.text.format if sent.text else None
        return {
            "id": generation.identity.object_id,
            "object": "response",
            "created_at": int(generation.identity.arrived_unix_seconds),
            "status": status,
            "background": self.is_background,
            "error": None,
            "incomplete_details": None,
            "instructions": sent.instructions,
            "max_output_tokens": sent.max_output_tokens,
            "metadata": sent.metadata or {},
            "model": generation.model.full_name,
            "output": [],
            "parallel_tool_calls": sent.parallel_tool_calls is not False,
            "previous_response_id": sent.previous_response_id,
            "store": sent.store is not False,
            "temperature": self._sequence.sampling.temperature,
            "text": {
                "format": form.model_dump(by_alias=True, exclude_none=True)
                if form
                else {"type": "text"}
            },
            "tool_choice": sent.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in sent.tools or ()],
            "top_p": self._sequence.sampling.top_p,
            "truncation": "disabled",
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
