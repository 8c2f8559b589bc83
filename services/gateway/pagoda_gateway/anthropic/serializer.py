"""A generation written down as Anthropic's message: whole, or as its events."""

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson

from pagoda_gateway import sse
from pagoda_gateway.anthropic.errors import messages_error
from pagoda_gateway.dialects import Block, BlockChange, BlockReader
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.serializer import Serializer, whole_output
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.guard import CONTENT_FILTER
from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence


class MessageSerializer(Serializer):
    """Writes the message that one sequence makes."""

    def __init__(self, generation: Generation, form: AnswerForm) -> None:
        assert form.new_parser is not None, "a chat's answers are read by a parser"
        (self._sequence,) = generation.sequences
        self._generation = generation
        new_call_id = partial(form.new_call_id, "toolu_")
        self._output = BlockReader(form.new_parser(), new_call_id)
        self._form = form
        self._has_begun = False

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the whole message."""
        self._output.read(whole_output(self._sequence).text, is_last=True)
        content = [_whole_block(block) for block in self._output.blocks]
        message = self._message(content) | self._stop() | {"usage": self._whole_usage()}
        yield orjson.dumps(message)

    def events(self, _sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """Return events of blocks; those of the first token begin the message."""
        events = []
        if not self._has_begun:
            self._has_begun = True
            message = self._message([])
            message["usage"]["output_tokens"] = 0  # some clients add them to those of the end
            events.append({"type": "message_start", "message": message})
        for change in self._output.read(delta.text, is_last=delta.finish_reason is not None):
            events += _block_events(change)
        return [sse.named(event) for event in events]

    async def end_events(self, receipt: dict[str, Any] | None) -> list[bytes]:
        """Return why the message has ended, and its end, with the receipt if it is wanted."""
        usage = self._whole_usage()
        delta = {"type": "message_delta", "delta": self._stop(), "usage": usage}
        stop: dict[str, Any] = {"type": "message_stop"}
        if receipt is not None:
            stop["receipt"] = receipt
        return [sse.named(delta), sse.named(stop)]

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """Return the error."""
        return [sse.named(self.error_body(error))]

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Return the error as Anthropic's clients read it."""
        return messages_error(error, self._generation.identity.shown_id)

    def keepalive(self, _stage: str) -> bytes:
        """Return a ping."""
        return sse.named({"type": "ping"})

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._generation.identity.object_id,
            "type": "message",
            "role": "assistant",
            "model": self._generation.model.full_name,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _whole_usage(self) -> dict[str, Any]:
        """Return what was used, and of that what thinking took, where the model thinks."""
        usage, token_ids = self._usage(), self._sequence.token_ids
        if self._form.count_reasoning is not None:
            num_thinking = self._form.num_reasoning_tokens(token_ids)
            usage["output_tokens_details"] = {"thinking_tokens": num_thinking}
        return usage

    def _usage(self) -> dict[str, Any]:
        num_cached, _ = self._generation.cached_tokens()
        return {
            "input_tokens": self._generation.num_prompt_tokens - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "output_tokens": len(self._sequence.token_ids),
        }

    def _stop(self) -> dict[str, Any]:
        matched = self._sequence.matched_stop
        if isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        if self._sequence.finish_reason == "length":
            reason = "max_tokens"
        elif self._sequence.finish_reason == CONTENT_FILTER:
            reason = "refusal"
        else:
            reason = "tool_use" if self._output.has_calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}


def _block_events(change: BlockChange) -> list[dict[str, Any]]:
    block = change.block
    if change.kind == "start":
        begun = _block(block, text="", values={})
        return [{"type": "content_block_start", "index": block.index, "content_block": begun}]
    if change.kind == "end":
        stop = {"type": "content_block_stop", "index": block.index}
        if block.kind != "reasoning":
            return [stop]
        # Clients that have heard of no signature do not send the thoughts back.
        return [_delta_event(block, "signature_delta", "signature", ""), stop]
    kind, field = {
        "text": ("text_delta", "text"),
        "reasoning": ("thinking_delta", "thinking"),
        "call": ("input_json_delta", "partial_json"),
    }[block.kind]
    return [_delta_event(block, kind, field, change.text)]


def _delta_event(block: Block, kind: str, field: str, text: str) -> dict[str, Any]:
    delta = {"type": kind, field: text}
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _whole_block(block: Block) -> dict[str, Any]:
    values = _input(block.text) if block.kind == "call" else {}
    return _block(block, text=block.text, values=values)


def _block(block: Block, *, text: str, values: dict[str, Any]) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text", "text": text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": values}


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments; those that were cut or written wrongly are none."""
    try:
        values = json.loads(arguments, strict=False)  # models write newlines as they are
        orjson.dumps(values)  # that it can be written: no half of a pair, no number too large
    except (ValueError, TypeError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
