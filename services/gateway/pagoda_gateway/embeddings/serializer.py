"""Writes embeddings down: as lists of numbers or as base64, cut if the client wants fewer."""

import base64
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import orjson

from pagoda_gateway.embeddings.schemas import EmbeddingsBody
from pagoda_gateway.errors import GatewayError, InvalidRequestError
from pagoda_gateway.openai.serializer import Serializer
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence

PART_NUMBERS = 8192
"""Numbers of one part: they are written in about a millisecond."""

_NO_STREAM = "embeddings come whole"


class EmbeddingSerializer(Serializer):
    """A list of embeddings, in the order of the inputs."""

    def __init__(self, generation: Generation, sent: EmbeddingsBody) -> None:
        """Write `generation` down as `sent` asks.

        Raises:
            InvalidRequestError: it asks for more dimensions than the model has.
        """
        size = generation.model.embedding_size
        if sent.dimensions is not None and sent.dimensions > size:
            raise InvalidRequestError(
                f"'dimensions' is {sent.dimensions}; this model's embeddings have {size}, so it "
                f"must be 1 to {size}",
                param="dimensions",
            )
        self._generation = generation
        self._dimensions = sent.dimensions
        self._is_base64 = sent.encoding_format == "base64"

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the answer, some embeddings at a time: all of them take a quarter of a second."""
        generation = self._generation
        num_tokens = sum(len(s.prompt.token_ids) for s in generation.sequences)
        start = b'{"object":"list","data":['
        num_in_part = max(1, PART_NUMBERS // generation.model.embedding_size)
        for first in range(0, len(generation.sequences), num_in_part):
            sequences = generation.sequences[first : first + num_in_part]
            yield start + b",".join(map(self._entry, sequences))
            start = b","
        end = {
            "model": generation.model.full_name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }
        yield b"]," + orjson.dumps(end)[1:]

    def events(self, sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """See `Serializer.events`."""
        raise AssertionError(_NO_STREAM)

    async def end_events(self, receipt: dict[str, Any] | None) -> list[bytes]:
        """See `Serializer.end_events`."""
        raise AssertionError(_NO_STREAM)

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """See `Serializer.failure_events`."""
        raise AssertionError(_NO_STREAM)

    def _entry(self, sequence: OutputSequence) -> bytes:
        entry = {"object": "embedding", "index": sequence.index}
        return orjson.dumps(entry | {"embedding": self._written(sequence.embedding)})

    def _written(self, embedding: bytes) -> str | tuple[float, ...]:
        if self._dimensions is not None:
            embedding = cut(embedding, self._dimensions)
        if self._is_base64:
            return base64.b64encode(embedding).decode()
        return _unpacked(embedding)


def cut(embedding: bytes, num_dimensions: int) -> bytes:
    """Return the first dimensions of an embedding, of length 1 again; float32, little endian."""
    values = _unpacked(embedding)[:num_dimensions]
    length = math.hypot(*values) or 1.0
    return struct.pack(f"<{len(values)}f", *(value / length for value in values))


def _unpacked(embedding: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(embedding) // 4}f", embedding)
