"""A generation written down as OpenAI's choices: a whole body, or chunk by chunk.

Plain dicts, as they are made for every token; `schemas.responses` describes them.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import orjson

from pagoda_gateway import sse
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.best_choices import best_choices, first_choices
from pagoda_gateway.openai.chat_message import ChatMessage
from pagoda_gateway.openai.logprobs import LogprobFormat
from pagoda_gateway.openai.serializer import Serializer, whole_output
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence
from pagoda_gateway.text.tokenizer import ModelTokenizer

INLINE_LOGPROBS = 2048  # an answer that has more of them is written off the event loop
PART_BYTES = 1 << 20
_PLACE = "the text"


class ChoiceSerializer(Serializer):
    """How one endpoint writes a generation down; here what all share."""

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]
    text_field: ClassVar[str]

    def __init__(
        self,
        generation: Generation,
        options: OutputOptions,
        form: AnswerForm,
        tokenizer: ModelTokenizer,
        *,
        echo_texts: list[str] | None,
        include_usage: bool = False,
        continuous_usage: bool = False,
    ) -> None:
        """Write `generation` down.

        Args:
            generation: whose answer this is.
            options: of the request.
            form: of its answers.
            tokenizer: names tokens in logprobs.
            echo_texts: for each prompt, what to put before its output; None: nothing.
            include_usage: a stream ends with a usage chunk, and every other chunk has usage null.
            continuous_usage: with include_usage, every chunk carries the usage so far.
        """
        self._generation = generation
        self._options = options
        self._form = form
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage and include_usage
        self._echo_texts = echo_texts
        self._begun: set[int] = set()
        self._text_alone = {self.text_field}
        self._plain_frames: dict[int, tuple[bytes, bytes]] = {}
        self._formats = {
            sequence.index: LogprobFormat(
                tokenizer,
                tokens_as_ids=options.tokens_as_ids,
                offset=len(self._echo(sequence)),
                new_detokenizer=partial(
                    tokenizer.detokenizer,
                    sequence.prompt.token_ids,
                    skip_special_tokens=options.skip_special_tokens,
                    kept=options.kept_token_ids,
                ),
            )
            for sequence in generation.sequences
        }

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the whole answer as JSON; one of many log probabilities is made in a thread."""
        if self._num_logprobs() <= INLINE_LOGPROBS:
            yield orjson.dumps(self._body())
            return
        text = await asyncio.to_thread(lambda: orjson.dumps(self._body()))
        for begin in range(0, len(text), PART_BYTES):
            yield text[begin : begin + PART_BYTES]

    def _body(self) -> dict[str, Any]:
        """Return the whole answer; the generation is over."""
        return {
            **self._head(self.object_name),
            **self._prompt_extras(),
            # Each is JSON before the next is made: as objects all would take many times as much.
            "choices": [orjson.Fragment(orjson.dumps(choice)) for choice in self._whole_choices()],
            "usage": self.usage(),
        }

    def _num_logprobs(self) -> int:
        """Return how many log probabilities a whole answer has, at most."""
        options = self._options
        of_prompt = (options.num_prompt_logprobs, options.num_echoed_logprobs)
        num_prompt = sum(1 + wanted for wanted in of_prompt if wanted is not None)
        num_output = 0 if options.num_logprobs is None else 1 + options.num_logprobs
        if not num_prompt + num_output:  # as nearly always
            return 0
        return sum(
            num_prompt * len(sequence.prompt.token_ids) + num_output * len(sequence.token_ids)
            for sequence in self._generation.sequences
        )

    def events(self, sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """Return one chunk, or none while there is neither text nor anything else asked for."""
        is_last = delta.finish_reason is not None
        content = self._content(sequence, delta.text, is_last=is_last)
        return self._events(sequence, delta, content)

    def text_events(self, sequence: OutputSequence, text: str) -> list[bytes]:
        """Return one chunk, or none; nearly all add text and no more: only the text is encoded."""
        content = self._content(sequence, text, is_last=False)
        if sequence.index in self._plain_frames and content.keys() == self._text_alone:
            return [self._plain_event(sequence, content[self.text_field])]
        return self._events(sequence, Delta(text=text), content)

    def _events(
        self, sequence: OutputSequence, delta: Delta, content: dict[str, Any]
    ) -> list[bytes]:
        options = self._options
        has_extras = bool(delta.token_ids) and (
            options.return_token_ids or options.num_logprobs is not None
        )
        is_last = delta.finish_reason is not None
        if not content and not is_last and not has_extras:
            return []
        is_first = sequence.index not in self._begun
        is_plain = not (is_first or is_last or has_extras or self._continuous_usage)
        if is_plain and content.keys() == self._text_alone:
            return [self._plain_event(sequence, content[self.text_field])]
        extras = {} if self._begun else self._prompt_extras()
        if is_first:
            self._begun.add(sequence.index)
            for field, text in self._echoed(sequence).items():
                content[field] = text + content.get(field, "")
        choice = self._delta_choice(sequence, delta, content, is_first=is_first)
        return [sse.data(self._chunk(choice, extras))]

    def _plain_event(self, sequence: OutputSequence, text: str) -> bytes:
        """Return a chunk that adds text and no more, as nearly all do: only the text is new."""
        frame = self._plain_frames.get(sequence.index)
        if frame is None:
            content = {self.text_field: _PLACE}
            chunk = self._chunk(self._delta_choice(sequence, Delta(), content, is_first=False))
            before, _, after = sse.data(chunk).rpartition(orjson.dumps(_PLACE))
            frame = self._plain_frames[sequence.index] = (before, after)
        return frame[0] + orjson.dumps(text) + frame[1]

    async def end_events(self, receipt: dict[str, Any] | None) -> list[bytes]:
        """Return the end; before it a chunk without choices with usage and receipt, if wanted."""
        extras: dict[str, Any] = {}
        if self._include_usage:
            extras["usage"] = self.usage()
        if receipt is not None:
            extras["receipt"] = receipt
        if not extras:
            return [sse.DONE]
        return [sse.data({**self._head(self.chunk_name), "choices": [], **extras}), sse.DONE]

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """Return the error, and the end."""
        return [sse.data(error.body()), sse.DONE]

    def _chunk(
        self, choice: dict[str, Any], extras: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        chunk = {**self._head(self.chunk_name), **(extras or {}), "choices": [choice]}
        if self._include_usage:
            # Without what reasoning took: it would be counted anew at each token.
            chunk["usage"] = self._usage() if self._continuous_usage else None
        return chunk

    def usage(self) -> dict[str, Any]:
        """Return token counts so far."""
        usage = self._usage()
        if self._form.count_reasoning is not None:
            outputs = (sequence.token_ids for sequence in self._generation.sequences)
            num_reasoning = sum(map(self._form.count_reasoning, outputs))
            usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
        return usage

    def _usage(self) -> dict[str, Any]:
        generation = self._generation
        num_prompt = generation.num_prompt_tokens
        num_output = sum(sequence.num_shown for sequence in generation.sequences)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": generation.cached_tokens()[0]},
        }

    def _head(self, object_name: str) -> dict[str, Any]:
        generation = self._generation
        return {
            "id": generation.identity.object_id,
            "object": object_name,
            "created": int(generation.identity.arrived_unix_seconds),
            "model": generation.model.full_name,
            "system_fingerprint": f"fp_{generation.model.kv_identity[:6].hex()}",
        }

    def _echo(self, sequence: OutputSequence) -> str:
        if self._echo_texts is None:
            return ""
        return self._echo_texts[sequence.index // self._options.num_choices]

    def _echoed(self, sequence: OutputSequence) -> dict[str, str]:
        """Return the texts of a choice that the output goes on with, by their fields."""
        echo = self._echo(sequence)
        return {self.text_field: echo} if echo else {}

    def _prompt_extras(self) -> dict[str, Any]:
        """Return what the answer says of its prompt beside the choices, in a stream once."""
        return {}

    def _content(self, _sequence: OutputSequence, text: str, *, is_last: bool) -> dict[str, Any]:
        """Return what new text adds to a choice; empty if nothing is certain yet."""
        return {self.text_field: text} if text else {}

    def _whole_choices(self) -> Iterator[dict[str, Any]]:
        """Yield the choices of a whole answer."""
        for sequence in self._generation.sequences:
            yield self._whole_choice(sequence, whole_output(sequence))

    @abstractmethod
    def _whole_choice(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        """Return one choice of a whole answer."""

    @abstractmethod
    def _delta_choice(
        self, sequence: OutputSequence, delta: Delta, content: dict[str, Any], *, is_first: bool
    ) -> dict[str, Any]:
        """Return one choice of a chunk; `content` is what it adds."""

    def _prompt_logprobs(self, sequence: OutputSequence) -> list[dict[str, Any] | None] | None:
        scores, num_top = sequence.prompt_logprobs, self._options.num_prompt_logprobs
        if scores is None or num_top is None:
            return None
        return self._formats[sequence.index].prompt(scores.positions, num_top)

    def _extras(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        """Return the fields that other servers add to a choice."""
        extras: dict[str, Any] = {}
        if delta.finish_reason is not None:
            matched = sequence.matched_stop
            is_asked = isinstance(matched, str) or matched in self._options.stop_token_ids
            extras["stop_reason"] = matched if is_asked else None
            extras["matched_stop"] = matched
        if self._options.return_token_ids:
            extras["token_ids"] = delta.token_ids
        return extras


class ChatSerializer(ChoiceSerializer):
    """chat.completion and chat.completion.chunk."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    text_field = "content"

    def __init__(self, generation: Generation, *args: Any, **options: Any) -> None:
        """See `ChoiceSerializer`."""
        super().__init__(generation, *args, **options)
        new_parser = self._form.new_parser
        assert new_parser is not None, "a chat's answers are read by a parser"
        self._new_call_id = partial(self._form.new_call_id, "call_")
        self._messages = {
            s.index: ChatMessage(new_parser(), self._new_call_id) for s in generation.sequences
        }

    def _body(self) -> dict[str, Any]:
        first = self._generation.sequences[0]
        return {**super()._body(), "prompt_logprobs": self._prompt_logprobs(first)}

    def _prompt_extras(self) -> dict[str, Any]:
        if not self._options.return_token_ids:
            return {}
        return {"prompt_token_ids": list(self._generation.sequences[0].prompt.token_ids)}

    def _whole_choice(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        message = self._messages[sequence.index].whole(delta.text)
        for field, text in self._echoed(sequence).items():
            message[field] = text + (message.get(field) or "")
        return {
            "index": sequence.index,
            "message": message,
            "logprobs": self._logprobs(sequence, delta),
            "finish_reason": self._reason(sequence, delta),
            **self._extras(sequence, delta),
        }

    def _delta_choice(
        self, sequence: OutputSequence, delta: Delta, content: dict[str, Any], *, is_first: bool
    ) -> dict[str, Any]:
        if is_first:
            text = None if "tool_calls" in content else ""  # as OpenAI begins calls without a text
            content = {"role": "assistant", "content": text, **content}
        logprobs = self._logprobs(sequence, delta)
        return {
            "index": sequence.index,
            "delta": content,
            "logprobs": logprobs if logprobs and logprobs["content"] else None,
            "finish_reason": self._reason(sequence, delta),
            **self._extras(sequence, delta),
        }

    def _echoed(self, sequence: OutputSequence) -> dict[str, str]:
        new_parser = self._form.new_echo_parser
        if new_parser is None:
            return super()._echoed(sequence)
        begun = ChatMessage(new_parser(), self._new_call_id)
        return begun.delta(self._echo(sequence), is_last=True)

    def _content(self, sequence: OutputSequence, text: str, *, is_last: bool) -> dict[str, Any]:
        return self._messages[sequence.index].delta(text, is_last=is_last)

    def _reason(self, sequence: OutputSequence, delta: Delta) -> str | None:
        message = self._messages[sequence.index]
        if delta.finish_reason != "stop" or not message.has_calls:
            return delta.finish_reason
        is_cut = isinstance(sequence.matched_stop, str) and not message.ends_with_a_call
        return delta.finish_reason if is_cut else self._form.calls_reason

    def _logprobs(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any] | None:
        num_top = self._options.num_logprobs
        if num_top is None or not delta.token_ids:
            return None
        positions = delta.logprobs
        if delta.finish_reason == "stop" and sequence.matched_stop == delta.token_ids[-1]:
            skip = self._options.skip_special_tokens
            if not (
                self._options.include_stop
                and self._tokenizer.decode(delta.token_ids[-1:], skip_special_tokens=skip)
            ):
                positions = positions[:-1]  # what ended the message is none of its tokens
        return self._formats[sequence.index].chat(positions, num_top)


class CompletionSerializer(ChoiceSerializer):
    """text_completion, whole or in chunks."""

    object_name = "text_completion"
    chunk_name = "text_completion"
    text_field = "text"

    def _whole_choices(self) -> Iterator[dict[str, Any]]:
        options = self._options
        if options.num_best is None:
            yield from super()._whole_choices()
            return
        choose = first_choices if options.is_search else best_choices
        best = choose(
            [(sequence, whole_output(sequence)) for sequence in self._generation.sequences],
            num_choices=options.num_choices,
            num_best=options.num_best,
        )
        for index, (sequence, delta) in enumerate(best):
            yield {**self._whole_choice(sequence, delta), "index": index}

    def _whole_choice(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        content = {"text": self._echo(sequence) + delta.text}
        return {
            **self._delta_choice(sequence, delta, content, is_first=True),
            "prompt_logprobs": self._prompt_logprobs(sequence),
        }

    def _delta_choice(
        self, sequence: OutputSequence, delta: Delta, content: dict[str, Any], *, is_first: bool
    ) -> dict[str, Any]:
        choice = {
            "index": sequence.index,
            "text": content.get("text", ""),
            "logprobs": self._logprobs(sequence, delta, is_first=is_first),
            "finish_reason": delta.finish_reason,
            **self._extras(sequence, delta),
        }
        if is_first and self._options.return_token_ids:
            choice["prompt_token_ids"] = list(sequence.prompt.token_ids)
        return choice

    def _logprobs(
        self, sequence: OutputSequence, delta: Delta, *, is_first: bool
    ) -> dict[str, Any] | None:
        options, form = self._options, self._formats[sequence.index]
        scores, num_echoed = sequence.prompt_logprobs, options.num_echoed_logprobs
        parts = []
        if is_first and scores is not None and num_echoed is not None:
            parts.append(form.echoed(sequence.prompt.token_ids, scores.positions, num_echoed))
        if options.num_logprobs is not None and delta.token_ids:
            parts.append(form.completion(delta.logprobs, options.num_logprobs))
        if not parts:
            return None
        return {name: [v for part in parts for v in part[name]] for name in parts[0]}
