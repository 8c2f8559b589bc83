"""From a body to prompts, budgets and sampling parameters: all that precedes the first worker."""

from dataclasses import dataclass
from typing import Any

from pagoda.rpc.v1.generate_pb2 import SamplingParams
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError, shorten
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.openai.schemas.sampling import GenerationBody
from pagoda_gateway.openai.validation import (
    OutputOptions,
    output_budget,
    output_options,
    sampling_params,
    sequence_seed,
)
from pagoda_gateway.sequences.catalog import ServedModel
from pagoda_gateway.text.prompts import Prompt, PromptMaker, completion_prompts
from pagoda_gateway.text.tokenizer import ModelTokenizer

DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Prepared:
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


class Preparer:
    """Checks and prepares; `options_*` need the body alone, `prepare_*` tokenise."""

    def __init__(
        self, settings: GatewaySettings, tokenizer: ModelTokenizer, maker: PromptMaker
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._maker = maker

    def chat_options(self, body: ChatBody) -> OutputOptions:
        """Check a chat body's options."""
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequestError("'top_logprobs' needs logprobs: true", param="top_logprobs")
        _check_tool_choice(body)
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return output_options(body, num_logprobs=num_logprobs, max_n=self._settings.max_n)

    def completion_options(self, body: CompletionBody) -> OutputOptions:
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

    async def chat(
        self, body: ChatBody, options: OutputOptions, model: ServedModel, tenant: str
    ) -> Prepared:
        """Render, tokenise and budget a conversation."""
        continues = bool(body.continue_final_message)
        token_ids = await self._maker.chat_tokens(
            body.messages,
            tools=body.tools if body.tools and body.tool_choice != "none" else None,
            add_generation_prompt=(
                not continues if body.add_generation_prompt is None else body.add_generation_prompt
            ),
            continue_final_message=continues,
            variables=body.chat_template_kwargs,
            add_special_tokens=bool(body.add_special_tokens),
        )
        last = body.messages[-1]
        echo = [str(last.content)] if body.echo and last.role == "assistant" else None
        wanted = body.max_completion_tokens or body.max_tokens
        return await self._prepare(
            body, options, model, tenant, [(token_ids, None)], wanted, None, echo
        )

    async def completion(
        self, body: CompletionBody, options: OutputOptions, model: ServedModel, tenant: str
    ) -> Prepared:
        """Tokenise and budget prompts."""
        prompts = await completion_prompts(
            self._maker,
            self._tokenizer,
            body.prompt,
            model,
            add_special_tokens=body.add_special_tokens is not False,
            needs_text=bool(body.echo),
        )
        echo = [text or "" for _, text in prompts] if body.echo else None
        return await self._prepare(
            body, options, model, tenant, prompts, body.max_tokens, DEFAULT_COMPLETION_TOKENS, echo
        )

    async def _prepare(
        self,
        body: GenerationBody,
        options: OutputOptions,
        model: ServedModel,
        tenant: str,
        prompts: list[tuple[list[int], str | None]],
        wanted: int | None,
        default: int | None,
        echo_texts: list[str] | None,
    ) -> Prepared:
        num_sequences = len(prompts) * options.num_choices
        if num_sequences > self._settings.max_sequences:
            raise InvalidRequestError(
                f"{len(prompts)} prompts times n {options.num_choices} make {num_sequences} "
                f"sequences; the limit is {self._settings.max_sequences}",
                param="prompt" if len(prompts) > 1 else "n",
            )
        ready: list[Prompt] = []
        sampling: list[SamplingParams] = []
        for token_ids, text in prompts:
            budget = output_budget(len(token_ids), wanted, default, model)
            base = sampling_params(
                body, model, max_tokens=budget, num_logprobs=options.num_logprobs
            )
            ready.append(await self._maker.finish(token_ids, text, model, tenant))
            for _ in range(options.num_choices):
                params = SamplingParams()
                params.CopyFrom(base)
                params.seed = sequence_seed(
                    body.seed, sequence_index=len(sampling), num_choices=options.num_choices
                )
                sampling.append(params)
        return Prepared(ready, sampling, options, echo_texts)


def _check_tool_choice(body: ChatBody) -> None:
    """Tools may enter the prompt; forcing a call is not supported yet."""
    choice: Any = body.tool_choice
    if choice is None or choice in ("none", "auto"):
        return
    if choice == "required" or (isinstance(choice, dict) and choice.get("type") == "function"):
        if not body.tools:
            raise InvalidRequestError("'tool_choice' needs 'tools'", param="tool_choice")
        raise UnsupportedFieldError(
            f"'tool_choice' {shorten(choice)} is not supported by this server; use auto or none",
            param="tool_choice",
        )
    raise InvalidRequestError(
        f"'tool_choice' must be none, auto, required or a function, not {shorten(choice)}",
        param="tool_choice",
    )
