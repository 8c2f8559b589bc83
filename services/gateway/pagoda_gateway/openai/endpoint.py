"""An API that generates: what it takes, whose body that becomes, and who writes its answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pagoda_gateway.openai.choices import ChoiceSerializer
from pagoda_gateway.openai.request_processor import Body, ProcessedRequest, RequestProcessor
from pagoda_gateway.openai.schemas.base import RequestBody
from pagoda_gateway.openai.serializer import Serializer
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.request import EndpointName

Sent = TypeVar("Sent", bound=RequestBody)


@dataclass(frozen=True, slots=True)
class Translated(Generic[Body]):
    """What a request is for the processor.

    Attributes:
        body: what it takes.
        serializer: makes what writes the answer.
        left_out: parts of the request that bind nothing.
    """

    body: Body
    serializer: Callable[[ProcessedRequest, Generation], Serializer]
    left_out: Sequence[str] = ()


class Endpoint(ABC, Generic[Sent, Body]):
    """One API in front of a processor for each model.

    Attributes:
        name: in accounts and metrics.
        operation: its name in traces.
        object_id_prefix: of its answers' ids.
        schema: of what clients send.
        processors: take what that becomes, by the model's own name.
    """

    name: ClassVar[EndpointName]
    operation: ClassVar[str]
    object_id_prefix: ClassVar[str]
    schema: type[Sent]

    def __init__(self, processors: Mapping[str, RequestProcessor[Body]]) -> None:
        self.processors = processors

    @abstractmethod
    async def translate(self, sent: Sent, tenant: str, line_id: str = "") -> Translated[Body]:
        """Return what a client of `tenant` has sent as the processor takes it.

        `line_id`: a batch's line's request id: it may have run before, and runs as it did then.

        Raises:
            InvalidRequestError: names the field that has no translation.
        """


class ChoicesEndpoint(Endpoint[Body, Body]):
    """OpenAI's older APIs, whose bodies are the processors' own."""

    serializer_type: ClassVar[type[ChoiceSerializer]]

    async def translate(self, sent: Body, _tenant: str, _line_id: str = "") -> Translated[Body]:
        """Return the body itself."""
        options = sent.stream_options

        def serializer(processed: ProcessedRequest, generation: Generation) -> Serializer:
            return self.serializer_type(
                generation,
                processed.options,
                processed.form,
                self.processors[generation.model.name].tokenizer,
                echo_texts=processed.echo_texts,
                include_usage=bool(options and options.include_usage),
                continuous_usage=bool(options and options.continuous_usage_stats),
            )

        return Translated(sent, serializer)
