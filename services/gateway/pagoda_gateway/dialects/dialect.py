"""Which family's format a model writes, and what it takes to read and to force it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pagoda_gateway.dialects.families import deepseek, gemma4, glm, json_list, kimi, olmo3
from pagoda_gateway.dialects.families.deepseek import DeepSeek
from pagoda_gateway.dialects.families.gemma4 import Gemma4
from pagoda_gateway.dialects.families.glm import Glm
from pagoda_gateway.dialects.families.harmony import CHANNEL, Harmony, unfinished
from pagoda_gateway.dialects.families.hermes import Hermes
from pagoda_gateway.dialects.families.json_list import JsonList
from pagoda_gateway.dialects.families.kimi import Kimi
from pagoda_gateway.dialects.families.llama3 import Llama3
from pagoda_gateway.dialects.families.mistral import ARGS, CALL_ID, OPEN, Mistral
from pagoda_gateway.dialects.families.olmo3 import Olmo3
from pagoda_gateway.dialects.families.qwen3_coder import (
    FUNCTION,
    PARAMETER,
    SEED_OPEN,
    Qwen3Coder,
)
from pagoda_gateway.dialects.grammar import Calls, Tool
from pagoda_gateway.dialects.parts import ContentText, OutputParser, ReasoningText, Without
from pagoda_gateway.dialects.reasoning import ReasoningMarks, ReasoningParser
from pagoda_gateway.dialects.reasoning_tokens import (
    Decode,
    num_analysis_tokens,
    num_thought_tokens,
)
from pagoda_gateway.dialects.stream_parser import ContentParser
from pagoda_gateway.dialects.text_calls import TextCalls

NAMES = (
    "command_r7b", "deepseek", "gemma4", "glm", "granite", "harmony", "hermes", "kimi", "llama3",
    "mistral", "nemotron", "olmo3", "phi4_mini", "qwen3_coder", "seed_oss",
)  # fmt: skip


class _Family(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def marks(self) -> tuple[str, ...]: ...

    @property
    def call_id_chars(self) -> int | None: ...

    def parser(self, tools: Sequence[Tool], /) -> OutputParser: ...

    def calls_rules(self, calls: Calls) -> list[str]: ...


@dataclass(frozen=True)
class Dialect:
    """How one model writes.

    Attributes:
        name: the family of its tool calls; hermes where the template shows none.
        marks: texts that parsers look for; where they are special tokens, detokenising keeps them.
        reasoning: the marks of reasoning that an output may begin with; None: there is none.
        call_id_chars: letters and digits of a call's id; None: any id will do.
    """

    name: str
    marks: tuple[str, ...]
    reasoning: ReasoningMarks | None
    call_id_chars: int | None
    _family: _Family | Harmony

    @classmethod
    def of(cls, template_source: str, name: str = "auto") -> "Dialect":
        """Return the dialect that a chat template shows, or the one of this name.

        Raises:
            ValueError: no such name.
        """
        if name not in ("auto", *NAMES):
            known = ", ".join(("auto", *NAMES))
            raise ValueError(f"no tool call format is named {name!r}; it must be one of {known}")
        family = _family(template_source, _found(template_source) if name == "auto" else name)
        in_messages = isinstance(family, Harmony)  # reasoning is one of them
        reasoning = None if in_messages else ReasoningMarks.shown_by(template_source)
        return cls(
            name=family.name,
            marks=family.marks + ((reasoning.open, reasoning.close) if reasoning else ()),
            reasoning=reasoning,
            call_id_chars=family.call_id_chars,
            _family=family,
        )

    def prompt_end(self, prompt: str, begun: str) -> str:
        """Return the end of a prompt as the other methods take it.

        Args:
            prompt: its end.
            begun: the beginning of the answer that it ends with, as a client wrote it; empty: the
                output is all of the answer. Where it ends within its reasoning, or behind it, that
                is what the output goes on from, however long ago the mark was.
        """
        left = "" if self.reasoning is None else self.reasoning.left_by(begun)
        return left or prompt

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether the output goes on inside reasoning that the prompt's end has opened."""
        return self.reasoning is not None and self.reasoning.are_opened_by(prompt)

    def reasoning_grammar(
        self, prompt: str, token_ids: Mapping[str, int], budget: int | None = None
    ) -> str:
        """Return llguidance's rules of reasoning before an answer, the first named `prefix`.

        Empty if there can be none. `token_ids`: as in `Calls`. `budget`: the most tokens that it
        has, where `bounds_reasoning` says that it can be held.
        """
        if isinstance(self._family, Harmony):
            return self._family.prefix_rules(prompt, token_ids, budget)
        reasoning = self._reasoning_after(prompt)
        if reasoning is None:
            return ""
        inside = reasoning.are_opened_by(prompt)
        return reasoning.rules(inside=inside, token_ids=token_ids, budget=budget)

    def bounds_reasoning(self, prompt: str, token_ids: Mapping[str, int]) -> bool:
        """Return whether there can be reasoning, and a grammar can hold it to a number of tokens.

        It can where the mark of its end is a token.
        """
        if isinstance(self._family, Harmony):
            return self._family.bounds_reasoning(prompt, token_ids)
        reasoning = self._reasoning_after(prompt)
        return reasoning is not None and reasoning.close in token_ids

    def free_answer(self, token_ids: Mapping[str, int]) -> str:
        """Return llguidance's rules of any answer, named `calls`: it does not reason again."""
        if isinstance(self._family, Harmony):
            return self._family.free_answer(token_ids)
        assert self.reasoning is not None, "asked where reasoning is bounded"
        return self.reasoning.free_answer(token_ids)

    def reasoning_counter(
        self,
        prompt: str,
        token_ids: Mapping[str, int],
        decode: Decode,
        tools: Sequence[Tool] = (),
    ) -> Callable[[Sequence[int]], int] | None:
        """Return what counts the tokens of an output's reasoning; None if it has none.

        Args:
            prompt: which the output goes on from, or the end of it.
            token_ids: as in `Calls`.
            decode: returns the text of tokens, special ones included.
            tools: that it can call.
        """
        if isinstance(self._family, Harmony):
            header, is_inside = unfinished(prompt)
            return partial(
                num_analysis_tokens,
                header=header,
                inside=is_inside,
                names=frozenset(tool.name for tool in tools),
                token_ids=token_ids,
                decode=decode,
            )
        reasoning = self._reasoning_after(prompt)
        if reasoning is None:
            return None
        return partial(
            num_thought_tokens,
            marks=reasoning,
            inside=reasoning.are_opened_by(prompt),
            token_ids=token_ids,
            decode=decode,
        )

    def text_opening(self, prompt: str, token_ids: Mapping[str, int]) -> str:
        """Return llguidance's words for what comes before an answer's text; empty if nothing does.

        `token_ids`: as in `Calls`.
        """
        if isinstance(self._family, Harmony):
            return self._family.text_opening(prompt, token_ids)
        return ""

    def parser(
        self,
        tools: Sequence[Tool],
        *,
        prompt: str = "",
        calls_only: bool = False,
        hides_reasoning: bool = False,
        texts: Collection[str] = (),
    ) -> OutputParser:
        """Return a parser of one output.

        Args:
            tools: what the model may call; none: calls are not looked for.
            prompt: which the output goes on from, or the end of it.
            calls_only: the grammar leaves no room for text.
            hides_reasoning: it is read, and not among the parts.
            texts: names of tools that take a text.
        """
        if isinstance(self._family, Harmony):
            answer = self._family.parser(tools, prompt)
        else:
            answer = self._family.parser(tools) if tools else ContentParser()
        if texts:
            answer = TextCalls(answer, texts)
        if calls_only:
            answer = Without(ContentText, answer)
        if self.reasoning is not None:
            inside = self.opens_reasoning(prompt)
            answer = ReasoningParser(self.reasoning, answer, inside=inside)
        return Without(ReasoningText, answer) if hides_reasoning else answer

    def calls_grammar(self, calls: Calls) -> str:
        """Return llguidance's rules for an answer that `parser` reads as these calls.

        The rule that a grammar begins with is `calls`; all names begin with `call`.

        Raises:
            InvalidRequestError: the format cannot hold one of the names.
        """
        return "\n".join(self._family.calls_rules(calls))

    def _reasoning_after(self, prompt: str) -> ReasoningMarks | None:
        """Return the marks of reasoning that may come after a prompt, or goes on."""
        reasoning = self.reasoning
        return None if reasoning is None or reasoning.are_closed_by(prompt) else reasoning


def _found(source: str) -> str:
    """Return the name of the format that a template shows."""
    shown = (name for name, *marks in _SHOWN if all(mark in source for mark in marks))
    return next(shown, "hermes")


_SHOWN = (
    ("harmony", CHANNEL),
    ("mistral", OPEN),
    ("gemma4", gemma4.OPEN + gemma4.CALL),
    ("deepseek", deepseek.CALL, deepseek.SEPARATOR),
    ("kimi", kimi.CALL, kimi.ARGUMENTS),
    ("glm", glm.OPEN, glm.KEY, glm.VALUE),
    ("olmo3", olmo3.OPEN, olmo3.TOOLS),
    ("nemotron", json_list.TOOLCALL),
    ("seed_oss", SEED_OPEN, FUNCTION, PARAMETER),
    ("qwen3_coder", FUNCTION, PARAMETER),
    ("command_r7b", json_list.ACTION),
    ("phi4_mini", json_list.TOOLS, json_list.TOOLS_END),
    ("phi4_mini", json_list.CALL, json_list.CALL_END),
    ("granite", json_list.CALL),
    ("llama3", "<|start_header_id|>", '"parameters"'),
)
"""Formats, each with marks by which a template shows it: all of them. The first one counts."""


def _family(source: str, name: str) -> _Family | Harmony:
    """Return a family, as its template has it."""
    makers: dict[str, Callable[[], _Family | Harmony]] = {
        "command_r7b": JsonList.command_r7b,
        "deepseek": lambda: DeepSeek(fenced=deepseek.FENCE in source),
        "gemma4": Gemma4,
        "glm": lambda: Glm(has_lines=glm.KEY_CLOSE + glm.VALUE not in source),
        "granite": JsonList.granite,
        "harmony": Harmony,
        "hermes": Hermes,
        "kimi": Kimi,
        "llama3": Llama3,
        "mistral": lambda: Mistral(named=ARGS in source, has_ids=CALL_ID in source),
        "nemotron": JsonList.nemotron,
        "olmo3": Olmo3,
        "phi4_mini": JsonList.phi4_mini,
        "qwen3_coder": Qwen3Coder,
        "seed_oss": Qwen3Coder.seed,
    }
    return makers[name]()
