"""The text side of each model that a gateway serves, read from its folder once, at the start."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pagoda_gateway.dialects import Dialect
from pagoda_gateway.openai.answer_form import AnswerForms
from pagoda_gateway.openai.sampling.generation_config import GenerationConfig
from pagoda_gateway.text.grammar_checker import GrammarChecker, GrammarThreads
from pagoda_gateway.text.prompts import PromptMaker, large_places
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.configuration.model_folder import find_model
from pagoda_runtime.errors import GrammarError, ModelFolderError
from pagoda_runtime.grammar import GrammarCompiler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelText:
    """What one model's files say: how prompts are made, answers bound and read, tokens drawn."""

    prompts: PromptMaker
    forms: AnswerForms
    defaults: GenerationConfig

    @classmethod
    def load(
        cls,
        folder: Path,
        tool_format: str = "auto",
        *,
        has_defaults: bool,
        large: asyncio.Semaphore,
        threads: GrammarThreads,
    ) -> "ModelText":
        """Read tokenizer and template; takes seconds for the largest.

        Args:
            folder: in Hugging Face layout.
            tool_format: how the model writes tool calls; auto: as its template shows.
            has_defaults: generation_config.json counts.
            large: places for large prompts, shared by all models.
            threads: for grammars, shared by all models.

        Raises:
            ModelFolderError: a file is missing or unusable.
        """
        tokenizer = ModelTokenizer.load(folder)
        template = ChatTemplate.load(folder, tokenizer.special_tokens)
        dialect = Dialect.of(template.with_tools.source if template else "", tool_format)
        if template is not None and dialect.name != "hermes":
            template.leave_tools_alone()
        checker = GrammarChecker(_compiler(folder, tokenizer), threads)
        return cls(
            PromptMaker(tokenizer, template, large),
            AnswerForms(dialect, tokenizer, checker),
            GenerationConfig.load(folder) if has_defaults else GenerationConfig(),
        )


async def load_texts(
    name: str,
    folder: Path,
    *,
    further: Mapping[str, str],
    tool_format: str,
    has_defaults: bool,
    threads: GrammarThreads,
) -> dict[str, ModelText]:
    """Return each model's text side by its name: the gateway's own first, then further ones.

    They are read one after the other, off the event loop.

    Args:
        name: of the gateway's own model.
        folder: of it.
        further: folder or hub name of each other model, `PAGODA_GATEWAY_MODELS`.
        tool_format: of the gateway's own model.
        has_defaults: each model's generation_config.json counts.
        threads: for grammars.

    Raises:
        ModelFolderError: says of every model whose files cannot be used what is wrong.
    """
    large = large_places()
    texts: dict[str, ModelText] = {}
    problems = []

    def load_further(other: str, where: str) -> ModelText:
        setting = f"PAGODA_GATEWAY_MODELS[{other!r}]"
        if other == name:
            raise ModelFolderError(f"{setting} has the name of PAGODA_MODEL, must have another")
        return load(find_model(where, setting))

    load = partial(ModelText.load, has_defaults=has_defaults, large=large, threads=threads)
    try:
        texts[name] = await asyncio.to_thread(load, folder, tool_format)
    except ModelFolderError as error:
        problems.append(f"model '{name}': {error}")
    for other, where in further.items():
        try:
            texts[other] = await asyncio.to_thread(load_further, other, where)
        except ModelFolderError as error:
            problems.append(f"model '{other}': {error}")
    if problems:
        raise ModelFolderError("; ".join(problems))
    return texts


def _compiler(folder: Path, tokenizer: ModelTokenizer) -> GrammarCompiler | None:
    try:
        return tokenizer.grammar_compiler()
    except GrammarError as error:
        logger.warning("%s: no JSON mode and no forced tools: %s", folder, error)
        return None
