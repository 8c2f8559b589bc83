"""Chat messages to prompt text, with the model's own Jinja template in a sandbox.

Renders as Hugging Face does. Knows no tokens. What a template sees is plain JSON data.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import orjson
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from pagoda_gateway.errors import InvalidRequestError, shorten
from pagoda_gateway.text.model_files import naming, read_text
from pagoda_gateway.text.templates.call_texts import HERMES, CallTexts, own_texts
from pagoda_gateway.text.templates.fitting import fitted_messages, fitted_tools
from pagoda_gateway.text.templates.habits import TemplateHabits, template_habits
from pagoda_gateway.text.templates.sandbox import MAX_TEXT_CHARS, BudgetedEnvironment, budgeted
from pagoda_gateway.text.templates.shape import template_shape
from pagoda_gateway.text.tokenizer import read_tokenizer_config

_TEMPLATE_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_OF_TOOLS = "tool_use"
"""What Hermes and Command R call a template of their own for where tools are offered."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks assistant text for training; rendering just keeps its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja reads a class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One model's chat template.

    Attributes:
        shape: what it expects of messages, by its syntax.
        habits: what it shows of them.
        with_tools: what renders a conversation in which tools are offered; mostly itself.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`; `special_tokens` (bos_token, ...) become its variables."""
        environment = BudgetedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        tree = environment.parse(source)
        self.shape = template_shape(tree)
        self._template = environment.from_string(tree)
        self._special_tokens = dict(special_tokens)
        self.source = source
        self._texts: CallTexts = HERMES
        self.habits = self._habits(is_for_tools=False)
        self.with_tools = self

    @classmethod
    def load(cls, folder: Path, special_tokens: Mapping[str, str]) -> "ChatTemplate | None":
        """Read chat_template.jinja, tokenizer_config.json or a processor's chat_template.json.

        Returns:
            None if the model has no template.

        Raises:
            ModelFolderError: it cannot be read or compiled.
        """
        path, field, source = _sources(folder)
        named = {"default": source}
        with naming(path, field):
            if isinstance(source, list):
                named = {entry["name"]: entry["template"] for entry in source}
        of_tools = folder / "additional_chat_templates" / f"{_OF_TOOLS}.jinja"
        if of_tools.is_file():
            named[_OF_TOOLS] = read_text(of_tools)
        with naming(path, field):
            if not named.get("default"):
                return None
            for name in ("default", _OF_TOOLS):
                if not isinstance(named.get(name, ""), str):
                    raise TypeError(f"it is {type(named[name]).__name__}, must be text")
            template = cls(named["default"], special_tokens)
            if named.get(_OF_TOOLS):
                template.with_tools = cls(named[_OF_TOOLS], special_tokens)
                template.with_tools.habits = template.with_tools._habits(is_for_tools=True)
            return template

    def leave_tools_alone(self) -> None:
        """Say nothing of tools that the template does not: their format is known to somebody.

        What a template shows only some of is said all the same, in the form that it shows.
        """
        for template in {self, self.with_tools}:
            texts = own_texts(template.source)
            if texts is not None:
                template._texts = texts
            else:
                template.habits = replace(template.habits, shows_tools=True, writes_calls=True)

    def _habits(self, *, is_for_tools: bool) -> TemplateHabits:
        return template_habits(
            self._rendered,
            self.shape,
            has_developer="developer" in self.source,
            is_for_tools=is_for_tools,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt's text; what the template cannot show is said otherwise.

        Raises:
            InvalidRequestError: the template refuses these messages.
        """
        return self._rendered(
            fitted_messages(
                [dict(message) for message in messages],
                tools,
                self.habits,
                self._texts,
            ),
            tools=fitted_tools(tools, self.habits) if tools else tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return what the template writes of messages as they are."""
        chat = [dict(message) for message in messages]
        final_text = ""
        if continue_final_message:
            final_text, chat[-1]["content"] = _tagged(chat[-1].get("content"))
        try:
            text = self._written(
                {
                    **self._special_tokens,
                    "documents": None,
                    **(variables or {}),
                    "messages": chat,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {shorten(str(error), 500)}",
                param="messages",
            ) from error
        if continue_final_message:
            return _cut_after(text, final_text)
        return text

    def _written(self, variables: Mapping[str, Any]) -> str:
        """Return what the template writes, within the sandbox's limits."""
        texts, size = [], 0
        with budgeted():
            for text in self._template.generate(variables):
                texts.append(text)
                size += len(text)
                if size > MAX_TEXT_CHARS:
                    raise jinja2.TemplateRuntimeError(f"it writes over {MAX_TEXT_CHARS} characters")
        return "".join(texts)


def _tagged(content: Any) -> tuple[str, Any]:
    """Return a final message's last text, and its content with the tag after that."""
    if isinstance(content, list) and content:
        text = content[-1]["text"]
        return text, [*content[:-1], {**content[-1], "text": text + _CONTINUE_TAG}]
    text = str(content or "")
    return text, text + _CONTINUE_TAG


def _cut_after(text: str, final_text: str) -> str:
    """Return the text up to the end of the final message, so that the model goes on with it."""
    position = text.rfind(_CONTINUE_TAG.strip())
    if position < 0:
        raise InvalidRequestError(
            "continue_final_message: the model's chat template drops the final message's content",
            param="continue_final_message",
        )
    # A template that trims the content also trimmed the tag's space: trim the message alike.
    if text[position:].startswith(_CONTINUE_TAG):
        return text[:position]
    return text[:position].rstrip() if final_text != final_text.rstrip() else text[:position]


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes HTML characters."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _sources(folder: Path) -> tuple[Path, str, Any]:
    """Return the file that has the template, the field of it, and what it has."""
    path, field = folder / "chat_template.jinja", "chat_template"
    if path.is_file():
        return path, "", read_text(path)
    found = read_tokenizer_config(folder).get(field)
    path = folder / "chat_template.json"
    if found is None and path.is_file():
        with naming(path, field):
            return path, field, orjson.loads(read_text(path))[field]
    return folder / "tokenizer_config.json", field, found
