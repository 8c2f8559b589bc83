"""A generation written down in OpenAI's shapes: a whole body, or chunk by chunk.

Plain dicts, as they are made for every token; `schemas.responses` describes them.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pagoda_gateway.openai.logprobs import LogprobFormat
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output_options import OutputOptions
from pagoda_gateway.sequences.output_sequence import Delta, OutputSequence
from pagoda_gateway.text.tokenizer import ModelTokenizer


class ResponseSerializer(ABC):
    """How one endpoint writes a generation down; here what all share."""

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(
        self,
        generation: Generation,
        options: OutputOptions,
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
            tokenizer: names tokens in logprobs.
            echo_texts: for each prompt, what to put before its output; None: nothing.
            include_usage: a stream ends with a usage chunk, and every other chunk has usage null.
            continuous_usage: with include_usage, every chunk carries the usage so far.
        """
        self._generation = generation
        self._options = options
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage and include_usage
        self._echo_texts = echo_texts
        self._begun: set[int] = set()
        self._formats = {
            sequence.index: LogprobFormat(
                tokenizer,
                tokens_as_ids=options.tokens_as_ids,
                offset=len(self._echo(sequence)),
            )
            for sequence in generation.sequences
        }

    def body(self) -> dict[str, Any]:
        """Return the whole answer; the generation is over."""
        choices = []
        for sequence in self._generation.sequences:
            delta = sequence.read() or Delta(finish_reason=sequence.finish_reason)
            sequence.num_delivered = len(sequence.token_ids)
            delta.text = self._echo(sequence) + delta.text
            choices.append(self._whole_choice(sequence, delta))
        return {**self._head(self.object_name), "choices": choices, "usage": self.usage()}

    def chunk(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any] | None:
        """Return one chunk, or None while there is neither text nor anything else asked for."""
        options = self._options
        has_extras = bool(delta.token_ids) and (
            options.return_token_ids or options.num_logprobs is not None
        )
        if not delta.text and delta.finish_reason is None and not has_extras:
            return None
        is_first = sequence.index not in self._begun
        if is_first:
            self._begun.add(sequence.index)
            delta.text = self._echo(sequence) + delta.text
        chunk = {
            **self._head(self.chunk_name),
            "choices": [self._delta_choice(sequence, delta, is_first=is_first)],
        }
        if self._include_usage:
            chunk["usage"] = self.usage() if self._continuous_usage else None
        return chunk

    def usage_chunk(self) -> dict[str, Any] | None:
        """Return the chunk without choices that ends a stream with usage; None: nobody asked."""
        if not self._include_usage:
            return None
        return {**self._head(self.chunk_name), "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Return token counts so far."""
        generation = self._generation
        num_prompt = generation.num_prompt_tokens
        num_output = sum(len(sequence.token_ids) for sequence in generation.sequences)
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
            "model": generation.model.name,
            "system_fingerprint": f"fp_{generation.model.kv_identity[:6].hex()}",
        }

    def _echo(self, sequence: OutputSequence) -> str:
        if self._echo_texts is None:
            return ""
        return self._echo_texts[sequence.index // self._options.num_choices]

    @abstractmethod
    def _whole_choice(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        """Return one choice of a whole answer."""

    @abstractmethod
    def _delta_choice(
        self, sequence: OutputSequence, delta: Delta, *, is_first: bool
    ) -> dict[str, Any]:
        """Return one choice of a chunk."""

    def _extras(
        self, sequence: OutputSequence, delta: Delta, *, with_prompt: bool
    ) -> dict[str, Any]:
        """Return the fields that other servers add to a choice."""
        extras: dict[str, Any] = {}
        if delta.finish_reason is not None:
            matched = sequence.matched_stop
            extras["stop_reason"] = matched
            extras["matched_stop"] = matched
        if self._options.return_token_ids:
            extras["token_ids"] = delta.token_ids
            if with_prompt:
                extras["prompt_token_ids"] = list(sequence.prompt.token_ids)
        return extras


class ChatSerializer(ResponseSerializer):
    """chat.completion and chat.completion.chunk."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def _whole_choice(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        return {
            "index": sequence.index,
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._logprobs(sequence, delta),
            "finish_reason": delta.finish_reason,
            **self._extras(sequence, delta, with_prompt=True),
        }

    def _delta_choice(
        self, sequence: OutputSequence, delta: Delta, *, is_first: bool
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if delta.text or is_first:
            content["content"] = delta.text
        return {
            "index": sequence.index,
            "delta": content,
            "logprobs": self._logprobs(sequence, delta),
            "finish_reason": delta.finish_reason,
            **self._extras(sequence, delta, with_prompt=is_first),
        }

    def _logprobs(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any] | None:
        num_top = self._options.num_logprobs
        if num_top is None or not delta.token_ids:
            return None
        return self._formats[sequence.index].chat(delta.logprobs, num_top)


class CompletionSerializer(ResponseSerializer):
    """text_completion, whole or in chunks."""

    object_name = "text_completion"
    chunk_name = "text_completion"

    def _whole_choice(self, sequence: OutputSequence, delta: Delta) -> dict[str, Any]:
        return self._delta_choice(sequence, delta, is_first=True)

    def _delta_choice(
        self, sequence: OutputSequence, delta: Delta, *, is_first: bool
    ) -> dict[str, Any]:
        num_top = self._options.num_logprobs
        has_logprobs = num_top is not None and bool(delta.token_ids)
        return {
            "index": sequence.index,
            "text": delta.text,
            "logprobs": self._formats[sequence.index].completion(delta.logprobs, num_top or 0)
            if has_logprobs
            else None,
            "finish_reason": delta.finish_reason,
            **self._extras(sequence, delta, with_prompt=is_first),
        }
