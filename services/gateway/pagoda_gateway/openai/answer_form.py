"""What an answer must look like, and how it is read: format, tools, reasoning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pagoda_gateway.dialects import Calls, Dialect, OutputParser, Tool, new_call_id
from pagoda_gateway.errors import InvalidRequestError, UnfollowableError
from pagoda_gateway.openai.bound_tools import BoundTool, bound_tools, loosened
from pagoda_gateway.openai.messages import content_text
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.formats import FIELDS, Wanted, only_wanted
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.openai.schemas.tools import ToolUse
from pagoda_gateway.text.grammar_checker import GrammarChecker, Source
from pagoda_gateway.text.grammars import (
    choice_rules,
    grammar_rules,
    json_rules,
    parse_schema,
    regex_rules,
    whole_grammar,
)
from pagoda_gateway.text.tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of one request's answers.

    Attributes:
        grammar: that every output must follow; "" = any text.
        new_parser: makes what reads an output; None: all of it is content.
        new_echo_parser: makes what reads the beginning of an answer that the output goes on from;
            None: all of it is content.
        kept_token_ids: special tokens whose text the parser needs.
        calls_reason: why an answer with calls has finished.
        call_id_chars: see `Dialect`.
        ignored: parts of the body that bind nothing here, though they could.
        count_reasoning: counts the tokens of an output's reasoning; None: it has none.
    """

    grammar: str = ""
    new_parser: Callable[[], OutputParser] | None = None
    new_echo_parser: Callable[[], OutputParser] | None = None
    kept_token_ids: frozenset[int] = frozenset()
    calls_reason: str = "tool_calls"
    call_id_chars: int | None = None
    ignored: tuple[str, ...] = ()
    count_reasoning: Callable[[Sequence[int]], int] | None = None

    def num_reasoning_tokens(self, output: Sequence[int]) -> int:
        """Return how many tokens of an output are reasoning."""
        return 0 if self.count_reasoning is None else self.count_reasoning(output)

    def new_call_id(self, prefix: str) -> str:
        """Return an id for a call, with this prefix where the model's format allows it."""
        return new_call_id(prefix, self.call_id_chars)


class AnswerForms:
    """Makes the forms of one model's answers."""

    def __init__(
        self, dialect: Dialect, tokenizer: ModelTokenizer, checker: GrammarChecker
    ) -> None:
        self._dialect = dialect
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)
        self._mark_ids = tokenizer.mark_ids(dialect.marks)
        self._checker = checker

    async def of_text(self, body: GenerationBody, tenant: str) -> AnswerForm:
        """Return the form of plain text.

        Raises:
            InvalidRequestError: nothing can follow what the body asks for.
        """
        wanted = _wanted(body)
        if wanted is None:
            return AnswerForm()
        source = await _format_source(wanted)
        grammar = whole_grammar(source.rules)
        await self._checker.check(grammar, [source], tenant)
        return AnswerForm(grammar, ignored=wanted.ignored)

    async def of_chat(self, body: ChatBody, use: ToolUse, prompt: str, tenant: str) -> AnswerForm:
        """Return the form of an answer to a conversation.

        Args:
            body: of the request.
            use: what it says of tools.
            prompt: the end of the rendered text.
            tenant: whose request it is.

        Raises:
            InvalidRequestError: nothing can follow what the body asks for.
        """
        dialect = self._dialect
        begun = content_text(body.messages[-1]) if body.continue_final_message else ""
        prompt = dialect.prompt_end(prompt, begun)
        functions = [tool["function"] for tool in use.callable]
        tools = [Tool(f["name"], f.get("parameters") or {}) for f in functions]
        budget = body.thinking_token_budget
        not_held = tuple(use.all_places[index] for index in use.free)
        if budget is not None and not dialect.bounds_reasoning(prompt, self._mark_ids):
            budget, not_held = None, (*not_held, body.thinking_budget_field)
        grammar, ignored = await self._chat_grammar(_wanted(body), use, prompt, budget, tenant)
        return AnswerForm(
            grammar=grammar,
            new_parser=partial(
                dialect.parser,
                tools,
                prompt=prompt,
                calls_only=use.is_required,
                hides_reasoning=body.include_reasoning is False,
                texts=use.texts,
            ),
            new_echo_parser=self._echo_parser(body) if begun else None,
            kept_token_ids=frozenset(self._mark_ids.values()),
            calls_reason="stop" if use.is_named else "tool_calls",
            call_id_chars=dialect.call_id_chars,
            ignored=not_held + ignored,
            count_reasoning=dialect.reasoning_counter(prompt, self._mark_ids, self._decode, tools),
        )

    def _echo_parser(self, body: ChatBody) -> Callable[[], OutputParser]:
        is_hidden = body.include_reasoning is False
        return partial(self._dialect.parser, [], hides_reasoning=is_hidden)

    async def _chat_grammar(
        self,
        wanted: Wanted | None,
        use: ToolUse,
        prompt: str,
        budget: int | None,
        tenant: str,
    ) -> tuple[str, tuple[str, ...]]:
        """Return the grammar of reasoning and then of calls or of text, and what it leaves out.

        A schema that no grammar can hold is left out where its tool is not strict: its arguments
        are any object then, as they are with `auto`.
        """
        ignored = wanted.ignored if wanted is not None else ()
        if use.is_required:
            wanted = None  # there is no text
        elif wanted is None and not use.is_strict:
            if budget is None:
                return "", ignored
            prefix = self._dialect.reasoning_grammar(prompt, self._mark_ids, budget)
            free = self._dialect.free_answer(self._mark_ids)
            return whole_grammar(calls=free, prefix=prefix), ignored
        text = None if wanted is None else await _format_source(wanted)
        tools = bound_tools(use)
        try:
            grammar = await self._checked(text, tools, use, prompt, budget, tenant)
        except UnfollowableError as error:
            num_texts = 0 if text is None else 1
            loose = loosened(tools, [index - num_texts for index in error.at_fault])
            if loose is None:
                raise
            tools = loose
            grammar = await self._checked(text, tools, use, prompt, budget, tenant)
        return grammar, ignored + tuple(tool.place for tool in tools if tool.is_loose)

    async def _checked(
        self,
        text: Source | None,
        tools: Sequence[BoundTool],
        use: ToolUse,
        prompt: str,
        budget: int | None,
        tenant: str,
    ) -> str:
        """Return the grammar of an answer, if it can be followed."""
        texts = [] if text is None else [text]
        calls = ""
        if tools:
            wanted = Calls(
                [tool.tool for tool in tools],
                at_least_one=use.is_required or text is not None,
                parallel=use.is_parallel,
                token_ids=self._mark_ids,
            )
            try:
                calls = self._dialect.calls_grammar(wanted)
            except UnfollowableError as error:
                error.at_fault = [len(texts) + index for index in error.at_fault]
                raise
        grammar = whole_grammar(
            None if text is None else text.rules,
            calls=calls,
            prefix=self._dialect.reasoning_grammar(prompt, self._mark_ids, budget),
            opening=self._dialect.text_opening(prompt, self._mark_ids),
        )
        sources = [*texts, *(tool.source for tool in tools)]
        await self._checker.check(grammar, sources, tenant)
        return grammar


def _wanted(body: GenerationBody) -> Wanted | None:
    if body.model_fields_set.isdisjoint(FIELDS):  # as nearly always
        return None
    wanted = only_wanted(body.__dict__, schema_field=body.schema_field)
    if wanted is not None and body.ignore_eos:
        raise InvalidRequestError(
            f"'ignore_eos' and '{wanted.param}' exclude each other: such an output has an end",
            param="ignore_eos",
        )
    return wanted


async def _format_source(wanted: Wanted) -> Source:
    """Return rules for the text.

    Raises:
        InvalidRequestError: names the field, and what cannot be followed.
    """
    try:
        return await _source(wanted)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"'{wanted.param}': {error}", param=wanted.param) from error


async def _source(wanted: Wanted) -> Source:
    param, value = wanted.param, wanted.value
    match wanted.kind:
        case "json_object" | "json":
            schema = {"type": "object"} if wanted.kind == "json_object" else value
            if isinstance(schema, str):
                schema = parse_schema(schema)
            return Source(param, json_rules(schema), schema=schema)
        case "regex":
            return Source(param, regex_rules(value))
        case "choice":
            return Source(param, choice_rules(value))
    return Source(param, await grammar_rules(value))
