"""POST /v1/completions: prompts to go on with."""

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError
from pagoda_gateway.openai.completion_prompts import completion_prompts
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.request_processor import RequestProcessor, TokenizedPrompts
from pagoda_gateway.openai.responses import CompletionSerializer
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.sequences.output_options import OutputOptions
from pagoda_gateway.served_model import ServedModel


class CompletionProcessor(RequestProcessor[CompletionBody]):
    """Takes texts and token ids as they are."""

    endpoint = "completions"
    operation = "text_completion"
    object_id_prefix = "cmpl-"
    schema = CompletionBody
    serializer = CompletionSerializer
    default_max_tokens = 16

    def options(self, body: CompletionBody) -> OutputOptions:
        """Check a completion body's options."""
        options = output_options(body, num_logprobs=body.logprobs, max_n=self._settings.max_n)
        if body.best_of is not None and body.best_of < options.num_choices:
            raise InvalidRequestError(
                f"'best_of' is {body.best_of}; it must be >= n {options.num_choices}",
                param="best_of",
            )
        if body.best_of is not None and body.best_of > options.num_choices:
            raise UnsupportedFieldError("'best_of' above n is not supported", param="best_of")
        if body.suffix:
            raise UnsupportedFieldError("'suffix' is not supported", param="suffix")
        if body.echo and body.logprobs is not None:
            raise UnsupportedFieldError(
                "'echo' together with 'logprobs' is not supported", param="echo"
            )
        return options

    async def tokenize(
        self, body: CompletionBody, options: OutputOptions, model: ServedModel
    ) -> TokenizedPrompts:
        """Tokenise each prompt."""
        prompts = await completion_prompts(
            self._prompts,
            body.prompt,
            model,
            max_prompts=max(1, self._settings.max_sequences // options.num_choices),
            add_special_tokens=body.add_special_tokens is not False,
            needs_text=bool(body.echo),
        )
        echo_texts = [text or "" for _, text in prompts] if body.echo else None
        return TokenizedPrompts(prompts, body.max_tokens, echo_texts)
