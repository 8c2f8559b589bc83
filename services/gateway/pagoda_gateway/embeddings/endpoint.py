"""POST /v1/embeddings: inputs in front of prompts that are computed and not continued."""

from dataclasses import replace
from typing import ClassVar

from pagoda_gateway.embeddings.schemas import MAX_INPUTS, EmbeddingsBody
from pagoda_gateway.embeddings.serializer import EmbeddingSerializer
from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.completion_prompts import completion_prompts
from pagoda_gateway.openai.endpoint import Endpoint, Translated
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.request_processor import RequestProcessor, TokenizedPrompts
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.served_model import ServedModel


class _Inputs(CompletionBody):
    prompt_field: ClassVar[str] = "input"


class EmbeddingProcessor(RequestProcessor[CompletionBody]):
    """Takes texts and token ids as they are, and asks for no token."""

    @property
    def max_sequences(self) -> int:
        """Inputs of one request at most; some of them run at a time."""
        return MAX_INPUTS

    def options(self, body: CompletionBody) -> OutputOptions:
        """Return an embedding's options."""
        options = output_options(body, num_logprobs=None)
        return replace(options, embed=True)

    async def tokenize(
        self, body: CompletionBody, _options: OutputOptions, model: ServedModel
    ) -> TokenizedPrompts:
        """Tokenise each input."""
        prompts, cut = await completion_prompts(
            self._prompts, body, model, max_prompts=MAX_INPUTS, default_max_tokens=None
        )
        return TokenizedPrompts(prompts, body.max_tokens, None, cut_prompts=cut)

    async def form(self, _body: CompletionBody, _text_end: str, _tenant: str) -> AnswerForm:
        """Return the form of what has no text."""
        return AnswerForm()


class EmbeddingsEndpoint(Endpoint[EmbeddingsBody, CompletionBody]):
    """Embeddings in front of completions of no token."""

    name = "embeddings"
    operation = "embeddings"
    object_id_prefix = "embd-"
    schema = EmbeddingsBody

    async def translate(
        self, sent: EmbeddingsBody, _tenant: str, _line_id: str = ""
    ) -> Translated[CompletionBody]:
        """Return the completion whose prompts are the inputs."""
        body = _Inputs.model_construct(
            model=sent.model,
            prompt=sent.input,
            max_tokens=0,
            temperature=0.0,
            truncate_prompt_tokens=sent.truncate_prompt_tokens,
            truncation_side=sent.truncation_side,
            add_special_tokens=sent.add_special_tokens,
            cache_salt=sent.cache_salt,
            priority=sent.priority,
            user=sent.user,
        )
        return Translated(body, lambda _, generation: EmbeddingSerializer(generation, sent))
