"""POST /v1/completions: prompts to go on with."""

from dataclasses import replace

from pagoda_gateway.openai.answer_form import AnswerForm
from pagoda_gateway.openai.choices import CompletionSerializer
from pagoda_gateway.openai.completion_prompts import completion_prompts
from pagoda_gateway.openai.endpoint import ChoicesEndpoint
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.request_processor import RequestProcessor, TokenizedPrompts
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.served_model import ServedModel


class CompletionProcessor(RequestProcessor[CompletionBody]):
    """Takes texts and token ids as they are."""

    default_max_tokens = 16

    def options(self, body: CompletionBody) -> OutputOptions:
        """Return a completion body's options."""
        options = output_options(body, num_logprobs=body.logprobs)
        num_choices = options.num_choices
        if body.best_of is not None and body.best_of > num_choices:
            options = replace(options, num_choices=body.best_of, num_best=num_choices)
        if body.echo:
            options = replace(options, num_echoed_logprobs=body.logprobs)
        return replace(options, is_prompt_alone=True) if body.max_tokens == 0 else options

    async def tokenize(
        self, body: CompletionBody, options: OutputOptions, model: ServedModel
    ) -> TokenizedPrompts:
        """Tokenise each prompt."""
        prompts, cut = await completion_prompts(
            self._prompts,
            body,
            model,
            max_prompts=max(1, self._settings.max_sequences // options.num_choices),
            default_max_tokens=self.default_max_tokens,
        )
        echo_texts = [text or "" for _, text in prompts] if body.echo else None
        return TokenizedPrompts(prompts, body.max_tokens, echo_texts, cut_prompts=cut)

    async def form(self, body: CompletionBody, _text_end: str, tenant: str) -> AnswerForm:
        """Return the form of plain texts."""
        return await self._forms.of_text(body, tenant)


class CompletionEndpoint(ChoicesEndpoint[CompletionBody]):
    """text_completion, whole or in chunks."""

    name = "completions"
    operation = "text_completion"
    object_id_prefix = "cmpl-"
    schema = CompletionBody
    serializer_type = CompletionSerializer
