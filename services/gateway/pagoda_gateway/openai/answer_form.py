"""What an answer must look like, and how it is read: format, tools, reasoning."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pagoda_gateway.dialects import Calls, Dialect, OutputParser, Tool, new_call_id
from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.openai.output_format import format_rules
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.formats import RESPONSE_SCHEMA, Wanted, only_wanted
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.openai.schemas.tools import ToolUse
from pagoda_gateway.text.grammars import GrammarChecker, arguments_schema, whole_grammar
from pagoda_gateway.text.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of one request's answers.

    Attributes:
        grammar: that every output must follow; "" = any text.
        new_parser: makes what reads an output; None: all of it is content.
        kept_token_ids: special tokens whose text the parser needs.
        calls_reason: why an answer with calls has finished.
        call_id_chars: see `Dialect`.
    """

    grammar: str = ""
    new_parser: Callable[[], OutputParser] | None = None
    kept_token_ids: frozenset[int] = frozenset()
    calls_reason: str = "tool_calls"
    call_id_chars: int | None = None

    def new_call_id(self, prefix: str) -> str:
        """Return an id for a call, with this prefix where the model's format allows it."""
        return new_call_id(prefix, self.call_id_chars)


class AnswerForms:
    """Makes the forms of one model's answers."""

    def __init__(
        self, dialect: Dialect, tokenizer: ModelTokenizer, checker: GrammarChecker
    ) -> None:
        self._dialect = dialect
        self._mark_ids = tokenizer.mark_ids(dialect.marks)
        self._checker = checker

    async def of_text(self, body: GenerationBody) -> AnswerForm:
        """Return the form of plain text.

        Raises:
            InvalidRequestError: nothing can follow what the body asks for.
        """
        wanted = _wanted(body)
        if wanted is None:
            return AnswerForm()
        grammar = whole_grammar(await format_rules(wanted))
        await self._checker.check(grammar, param=wanted.param)
        return AnswerForm(grammar)

    async def of_chat(self, body: ChatBody, use: ToolUse, prompt: str) -> AnswerForm:
        """Return the form of an answer to a conversation.

        Args:
            body: of the request.
            use: what it says of tools.
            prompt: the end of the rendered text.

        Raises:
            InvalidRequestError: nothing can follow what the body asks for.
        """
        dialect = self._dialect
        tools = [Tool(tool["function"]["name"]) for tool in use.callable]
        return AnswerForm(
            grammar=await self._chat_grammar(_wanted(body), use, prompt),
            new_parser=lambda: dialect.parser(tools, prompt=prompt, calls_only=use.is_required),
            kept_token_ids=frozenset(self._mark_ids.values()),
            calls_reason="stop" if use.is_named else "tool_calls",
            call_id_chars=dialect.call_id_chars,
        )

    async def _chat_grammar(self, wanted: Wanted | None, use: ToolUse, prompt: str) -> str:
        """Return the grammar of reasoning, and then of calls or of text."""
        if use.is_required:
            wanted = None  # there is no text
        elif wanted is None and not use.is_strict:
            return ""
        calls = ""
        if use.callable:
            calls = self._dialect.calls_grammar(
                Calls(
                    [_enforced(tool["function"]) for tool in use.callable],
                    at_least_one=use.is_required or wanted is not None,
                    parallel=use.is_parallel,
                    token_ids=self._mark_ids,
                )
            )
        grammar = whole_grammar(
            None if wanted is None else await format_rules(wanted),
            calls=calls,
            prefix=self._dialect.reasoning_grammar(prompt, self._mark_ids),
            opening=self._dialect.text_opening(prompt, self._mark_ids),
        )
        param = "tools" if wanted is None else wanted.param
        await self._checker.check(grammar, param=param)
        return grammar


def _enforced(function: dict[str, Any]) -> Tool:
    """Return a function as grammars take it."""
    try:
        return Tool(function["name"], arguments_schema(function.get("parameters")))
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"'tools': the parameters of {shorten(function['name'])}: {error}", param="tools"
        ) from error


def _wanted(body: GenerationBody) -> Wanted | None:
    wanted = only_wanted(body.__dict__)
    if wanted is not None and wanted.param == RESPONSE_SCHEMA:
        wanted = replace(wanted, param=body.schema_field)
    if wanted is not None and body.ignore_eos:
        raise InvalidRequestError(
            f"'ignore_eos' and '{wanted.param}' exclude each other: such an output has an end",
            param="ignore_eos",
        )
    return wanted
