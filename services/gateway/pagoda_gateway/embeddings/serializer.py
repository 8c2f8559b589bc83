"""Writes embeddings down: as lists of numbers or as base64, cut if the client wants fewer."""

import base64
import math
import struct
from typing import Any

import orjson

from pagoda_gateway.embeddings.schemas import EmbeddingsBody
from pagoda_gateway.errors import GatewayError, InvalidRequestError
from pagoda_gateway.openai.serializer import Serializer
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output_sequence import Delta, OutputSequence

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

    def body(self) -> dict[str, Any]:
        """Return the whole answer; the generation is over."""
        num_tokens = sum(len(s.prompt.token_ids) for s in self._generation.sequences)
        return {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": sequence.index,
                    "embedding": self._written(sequence.embedding),
                }
                for sequence in self._generation.sequences
            ],
            "model": self._generation.model.name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }

    def events(self, sequence: OutputSequence, delta: Delta) -> list[bytes]:
        """See `Serializer.events`."""
        raise AssertionError(_NO_STREAM)

    def end_events(self) -> list[bytes]:
        """See `Serializer.end_events`."""
        raise AssertionError(_NO_STREAM)

    def failure_events(self, error: GatewayError) -> list[bytes]:
        """See `Serializer.failure_events`."""
        raise AssertionError(_NO_STREAM)

    def _written(self, embedding: bytes) -> str | orjson.Fragment:
        if self._dimensions is not None:
            embedding = cut(embedding, self._dimensions)
        if self._is_base64:
            return base64.b64encode(embedding).decode()
        # Text at once: as Python's floats all of an answer would take several times its size.
        return orjson.Fragment(orjson.dumps(_unpacked(embedding)))


def cut(embedding: bytes, num_dimensions: int) -> bytes:
    """Return the first dimensions of an embedding, of length 1 again; float32, little endian."""
    values = _unpacked(embedding)[:num_dimensions]
    length = math.hypot(*values) or 1.0
    return struct.pack(f"<{len(values)}f", *(value / length for value in values))


def _unpacked(embedding: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(embedding) // 4}f", embedding)
