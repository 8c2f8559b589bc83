"""From a body to what the engine can run, the part that all processors share.

What makes processors differ is in `chat`, `completions` and `embeddings`. Knows no HTTP; nothing
has been sent to a worker yet.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from pagoda.rpc.v1.generate_pb2 import SamplingParams
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import InvalidRequestError, Problems, shorten
from pagoda_gateway.openai.answer_form import AnswerForm, AnswerForms
from pagoda_gateway.openai.sampling.beam_search import check_grammar, most_tokens
from pagoda_gateway.openai.sampling.generation_config import GenerationConfig
from pagoda_gateway.openai.sampling.sampling_params import (
    dry_sequence_breakers,
    logit_bias,
    output_budget,
    sampling_params,
    sequence_seed,
)
from pagoda_gateway.openai.schemas.checks import check_min_tokens
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import Prompt, PromptMaker
from pagoda_gateway.text.tokenizer import ModelTokenizer

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class ProcessedRequest:
    """A request that the engine can run.

    Attributes:
        prompts: at least one.
        sampling: one for each sequence: prompt index * num_choices + choice.
        options: of the output.
        echo_texts: one for each prompt if the output repeats it.
        form: of the answers.
        cut_prompts: token ids of those prompts that are less than what was sent.
    """

    prompts: list[Prompt]
    sampling: list[SamplingParams]
    options: OutputOptions
    echo_texts: list[str] | None
    form: AnswerForm
    cut_prompts: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class TokenizedPrompts:
    """What a processor makes of a body's prompt field or messages.

    Attributes:
        prompts: token ids and, where they are known, the text.
        max_tokens: what the client asked for; None = nothing.
        echo_texts: see `ProcessedRequest`.
        text_end: the end of a conversation's text, which the output goes on from.
        cut_prompts: see `ProcessedRequest`.
    """

    prompts: list[tuple[list[int], str | None]]
    max_tokens: int | None
    echo_texts: list[str] | None
    text_end: str = ""
    cut_prompts: Sequence[Sequence[int]] = ()


class RequestProcessor(ABC, Generic[Body]):
    """The way from a body to sequences of one model.

    Attributes:
        default_max_tokens: when the client asks for nothing, and the model's configuration for no
            fewer; None = what is left of the context.
    """

    default_max_tokens: ClassVar[int | None] = None

    def __init__(
        self,
        settings: GatewaySettings,
        prompts: PromptMaker,
        forms: AnswerForms,
        defaults: GenerationConfig,
    ) -> None:
        self._settings = settings
        self._prompts = prompts
        self._forms = forms
        self._sampling = defaults.sampling
        bounds = (self.default_max_tokens, defaults.max_new_tokens)
        self._default_max_tokens = min((b for b in bounds if b is not None), default=None)

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The model's."""
        return self._prompts.tokenizer

    @property
    def max_sequences(self) -> int:
        """Sequences of one request at most; embeddings have a limit of their own."""
        return self._settings.max_sequences

    @abstractmethod
    def options(self, body: Body) -> OutputOptions:
        """Return the body's options; needs no model and no tokenizer."""

    @abstractmethod
    async def tokenize(
        self, body: Body, options: OutputOptions, model: ServedModel, /
    ) -> TokenizedPrompts:
        """Turn the body's prompt or messages into token ids; no more than make `max_sequences`."""

    @abstractmethod
    async def form(self, body: Body, text_end: str, tenant: str, /) -> AnswerForm:
        """Return the form of the answers to a tenant's prompt that ends with `text_end`.

        Raises:
            InvalidRequestError: nothing can follow what the body asks for.
        """

    async def process(
        self, body: Body, options: OutputOptions, model: ServedModel, tenant: str
    ) -> ProcessedRequest:
        """Tokenise, budget and hash.

        Raises:
            InvalidRequestError: names every field that the model cannot serve, and its limit.
        """
        problems = Problems()
        text_end = ""
        with problems:
            tokenized = await self.tokenize(body, options, model)
            text_end = tokenized.text_end
            self._check_vocabulary(body, tokenized, model)
            budgets = self._budgets(body, tokenized, options, model)
        with problems:
            form = await self.form(body, text_end, tenant)
            check_grammar(form.grammar, options)
        for param, token_ids in (
            ("stop_token_ids", body.stop_token_ids),
            ("logit_bias", tuple(logit_bias(body))),
            ("allowed_token_ids", body.allowed_token_ids),
            ("logprob_token_ids", body.logprob_token_ids),
        ):
            if token_ids:
                with problems:
                    model.check_token_ids(token_ids, param=param)
        breakers: Sequence[int] = ()
        if texts := dry_sequence_breakers(body):
            with problems:
                breakers = await self._prompts.breaker_tokens(texts, model)
        problems.raise_all()
        bad_words: Sequence[Sequence[int]] = ()
        if body.bad_words:
            bad_words = await self._prompts.bad_word_tokens(body.bad_words, model)
        prompts: list[Prompt] = []
        sampling: list[SamplingParams] = []
        for (token_ids, text), budget in zip(tokenized.prompts, budgets, strict=True):
            base = sampling_params(
                body,
                options,
                defaults=self._sampling,
                max_tokens=budget,
                grammar=form.grammar,
                bad_words=bad_words,
                dry_sequence_breakers=breakers,
            )
            prompts.append(
                await self._prompts.finish(
                    token_ids, text, model, tenant, own_salt=body.cache_salt or ""
                )
            )
            for choice in range(options.num_choices):
                params = base
                if choice:
                    params = SamplingParams()
                    params.CopyFrom(base)
                params.seed = sequence_seed(
                    body.seed, sequence_index=len(sampling), num_choices=options.num_choices
                )
                sampling.append(params)
            if len(prompts) < len(tokenized.prompts):
                await asyncio.sleep(0)  # others have their turn between them
        if form.kept_token_ids != options.kept_token_ids:
            options = replace(options, kept_token_ids=form.kept_token_ids)
        return ProcessedRequest(
            prompts, sampling, options, tokenized.echo_texts, form, tokenized.cut_prompts
        )

    def _check_vocabulary(
        self, body: Body, tokenized: TokenizedPrompts, model: ServedModel
    ) -> None:
        """Refuse tokens that the tokenizer has and the model has not."""
        num_tokens = self.tokenizer.vocab_size
        if num_tokens <= model.vocab_size:
            return
        for token_ids, _ in tokenized.prompts:
            if max(token_ids, default=0) >= model.vocab_size:
                first = next(i for i in token_ids if i >= model.vocab_size)
                raise InvalidRequestError(
                    f"the prompt has {shorten(self.tokenizer.token_text(first))} (token {first}), "
                    f"which this model has not: its vocab_size is {model.vocab_size}, and its "
                    f"tokenizer has {num_tokens} tokens. Leave it out; if the chat template writes "
                    "it, the model's folder wants another tokenizer",
                    param=body.prompt_field,
                )

    def _budgets(
        self, body: Body, tokenized: TokenizedPrompts, options: OutputOptions, model: ServedModel
    ) -> list[int]:
        """Return max_tokens for each prompt; raises InvalidRequestError for one that cannot run."""
        num_prompts = len(tokenized.prompts)
        num_sequences = num_prompts * options.num_choices
        if num_sequences > self.max_sequences:
            field = options.num_choices_field
            raise InvalidRequestError(
                f"{num_prompts} prompts times {field} {options.num_choices} make {num_sequences} "
                f"sequences; the limit is {self.max_sequences}",
                param=body.prompt_field if num_prompts > 1 else field,
            )
        wanted, default = tokenized.max_tokens, self._default_max_tokens
        if options.is_search:
            most = most_tokens(options)
            if wanted is not None and wanted > most:
                raise InvalidRequestError(
                    f"'{body.max_tokens_field}' is {wanted}; for {options.num_choices} beams with "
                    f"these log probabilities it can be {most} at most",
                    param=body.max_tokens_field,
                )
            default = most if default is None else min(default, most)
        budgets, param = [], body.max_tokens_field
        for token_ids, _ in tokenized.prompts:
            if not token_ids:
                raise InvalidRequestError(
                    "the prompt has no tokens: the tokenizer or the model's chat template makes "
                    "nothing of it. Send some text.",
                    param=body.prompt_field,
                )
            budget = output_budget(
                len(token_ids),
                wanted,
                default,
                model,
                param=param,
                prompt_param=body.prompt_field,
            )
            check_min_tokens(body.min_tokens, budget, param)
            budgets.append(budget)
        self._check_num_scored(tokenized, options)
        return budgets

    def _check_num_scored(self, tokenized: TokenizedPrompts, options: OutputOptions) -> None:
        """Refuse more log probabilities of prompts than one answer may hold."""
        if options.num_scored_logprobs is None:
            return
        num_prompt_tokens = sum(len(token_ids) for token_ids, _ in tokenized.prompts)
        num_tokens = num_prompt_tokens * options.num_choices * (1 + options.num_scored_logprobs)
        if num_tokens > self._settings.max_whole_tokens:
            sent = {
                "prompt_logprobs": options.num_prompt_logprobs,
                "logprobs": options.num_echoed_logprobs,
            }
            raise InvalidRequestError(
                f"{num_tokens} tokens would be scored (prompt tokens times n or best_of times "
                f"alternatives); the limit is {self._settings.max_whole_tokens}",
                param=next((name for name, num in sent.items() if num is not None), "echo"),
            )
