"""From a body to what the engine can run, the part that every endpoint shares.

An endpoint's own part (its prompts, its fields, its names) is in `chat` and `completions`. Knows no
HTTP; nothing has been sent to a worker yet.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pagoda.rpc.v1.generate_pb2 import SamplingParams
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.responses import ResponseSerializer
from pagoda_gateway.openai.sampling_params import output_budget, sampling_params, sequence_seed
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output_options import OutputOptions
from pagoda_gateway.sequences.request import Endpoint
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import Prompt, PromptMaker
from pagoda_gateway.text.tokenizer import ModelTokenizer

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class ProcessedRequest:
    """A request that the engine can run.

    Attributes:
        prompts: at least one.
        sampling: one for each sequence: prompt index * n + choice.
        options: of the output.
        echo_texts: one for each prompt if the output repeats it.
    """

    prompts: list[Prompt]
    sampling: list[SamplingParams]
    options: OutputOptions
    echo_texts: list[str] | None


@dataclass(frozen=True, slots=True)
class TokenizedPrompts:
    """What an endpoint makes of its body's prompt field or messages.

    Attributes:
        prompts: token ids and, where they are known, the text.
        max_tokens: what the client asked for; None = nothing.
        echo_texts: see `ProcessedRequest`.
    """

    prompts: list[tuple[list[int], str | None]]
    max_tokens: int | None
    echo_texts: list[str] | None


class RequestProcessor(ABC, Generic[Body]):
    """One endpoint's way from a body to sequences, and what its answers look like.

    Attributes:
        endpoint: its name in accounts and metrics.
        operation: its name in traces.
        object_id_prefix: of its answers' ids.
        schema: of its bodies.
        serializer: writes its answers.
        default_max_tokens: when the client asks for nothing; None = what is left of the context.
    """

    endpoint: ClassVar[Endpoint]
    operation: ClassVar[str]
    object_id_prefix: ClassVar[str]
    schema: type[Body]
    serializer: ClassVar[type[ResponseSerializer]]
    default_max_tokens: ClassVar[int | None] = None

    def __init__(
        self, settings: GatewaySettings, tokenizer: ModelTokenizer, prompts: PromptMaker
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._prompts = prompts

    @abstractmethod
    def options(self, body: Body) -> OutputOptions:
        """Check the body's options; needs no model and no tokenizer."""

    @abstractmethod
    async def tokenize(
        self, body: Body, options: OutputOptions, model: ServedModel, /
    ) -> TokenizedPrompts:
        """Turn the body's prompt or messages into token ids; no more than make `max_sequences`."""

    async def process(
        self, body: Body, options: OutputOptions, model: ServedModel, tenant: str
    ) -> ProcessedRequest:
        """Tokenise, budget and hash.

        Raises:
            InvalidRequestError: names the field, the value and the limit.
        """
        tokenized = await self.tokenize(body, options, model)
        num_prompts = len(tokenized.prompts)
        num_sequences = num_prompts * options.num_choices
        if num_sequences > self._settings.max_sequences:
            raise InvalidRequestError(
                f"{num_prompts} prompts times n {options.num_choices} make {num_sequences} "
                f"sequences; the limit is {self._settings.max_sequences}",
                param="prompt" if num_prompts > 1 else "n",
            )
        prompts: list[Prompt] = []
        sampling: list[SamplingParams] = []
        for token_ids, text in tokenized.prompts:
            if not token_ids:
                raise InvalidRequestError(
                    "the prompt has no tokens: the tokenizer or the model's chat template makes "
                    "nothing of it. Send some text.",
                    param="messages" if self.default_max_tokens is None else "prompt",
                )
            budget = output_budget(
                len(token_ids), tokenized.max_tokens, self.default_max_tokens, model
            )
            base = sampling_params(
                body, model, max_tokens=budget, num_logprobs=options.num_logprobs
            )
            prompts.append(await self._prompts.finish(token_ids, text, model, tenant))
            for _ in range(options.num_choices):
                params = SamplingParams()
                params.CopyFrom(base)
                params.seed = sequence_seed(
                    body.seed, sequence_index=len(sampling), num_choices=options.num_choices
                )
                sampling.append(params)
            await asyncio.sleep(0)  # many prompts: others have their turn between them
        return ProcessedRequest(prompts, sampling, options, tokenized.echo_texts)
