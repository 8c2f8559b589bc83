r"""DeepSeek V3, R1 and V3.1: calls between marks whose letters are full width.

V3.1 writes `<｜tool▁calls▁begin｜>`, then `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}` and
`<｜tool▁call▁end｜>` for each call, and `<｜tool▁calls▁end｜>`. V3 and R1 write
`function<｜tool▁sep｜>NAME` and the arguments as a block of code. A parser reads both; which of
them a model writes, its chat template says.
"""

import re
from collections.abc import Sequence

from pagoda_gateway.dialects.call_parser import SectionCallParser
from pagoda_gateway.dialects.grammar import Calls, Tool, check_names, json_text, mark, opening_rules
from pagoda_gateway.dialects.parts import OutputParser
from pagoda_gateway.dialects.source import Reading

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001
FENCE = "```json"
_TYPE = "function"
_FENCES = (FENCE, "```")
_NAME_END = re.compile(r"[\s<`{]")


class DeepSeek:
    """The family."""

    name = "deepseek"
    marks = (CALLS, CALLS_END, CALL, SEPARATOR, CALL_END)
    call_id_chars = None

    def __init__(self, *, fenced: bool = False) -> None:
        """`fenced`: the model writes a type before a name, and arguments as a block of code."""
        self._fenced = fenced

    def parser(self, _tools: Sequence[Tool]) -> OutputParser:
        """Return a parser of one output."""
        return _Parser()

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
        """
        check_names(calls.tools, _NAME_END, "a space, '<', '`' and '{'")
        call, separator, end, calls_end = (
            mark(text, calls.token_ids) for text in (CALL, SEPARATOR, CALL_END, CALLS_END)
        )
        text = "" if calls.at_least_one else "call_text | "
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        line = r'"\n" ' if self._fenced else ""
        more = f" ({line}call_block)*" if calls.parallel else ""
        return [
            f"calls: {text}call_open call_block{more} {calls_end}",
            f"call_block: {call} ({names}) {end}",
            *opening_rules(CALLS, calls),
            *(self._rule(i, tool, separator) for i, tool in enumerate(calls.tools)),
        ]

    def _rule(self, index: int, tool: Tool, separator: str) -> str:
        arguments = f"%json {json_text(tool.arguments)}"
        if not self._fenced:
            return f"call_{index}: {json_text(tool.name)} {separator} {arguments}"
        head = json_text(f"{tool.name}\n{FENCE}\n")
        return f'call_{index}: "{_TYPE}" {separator} {head} {arguments} "\\n```"'


class _Parser(SectionCallParser):
    _marks = (CALLS, CALL)
    _section_end = CALLS_END

    def _one_call(self, held: list[str]) -> Reading[bool]:
        name = yield from self._source.word(_NAME_END, held)
        held.append((yield from self._source.whitespace()))
        separated = yield from self._source.mark(SEPARATOR, cut=True)
        if separated:
            held += [SEPARATOR, (yield from self._source.whitespace())]
        is_named = False  # for certain: another one may stand behind the mark
        if separated and (yield from self._source.peek()) != "{":
            name = yield from self._source.word(_NAME_END, held)
            space = yield from self._source.whitespace()
            held.append(space)
            is_named = bool(name and space)
            yield from self._fence(held)
        following = yield from self._source.peek()
        if name and separated and following == "{":
            self._start_call(name)
            if not (yield from self._source.json_value(self._arguments)):
                return False
            yield from self._fence([])
            yield from self._source.mark(CALL_END, cut=True)
            return True
        if following:
            self._content("".join(held))
        elif is_named:
            self._start_call(name)
        return False

    def _fence(self, held: list[str]) -> Reading[None]:
        """Read the mark of a block of code, if there is one, with the space around it."""
        held.append((yield from self._source.whitespace()))
        for fence in _FENCES:
            if (yield from self._source.mark(fence, cut=True)):
                held.append(fence)
                break
        held.append((yield from self._source.whitespace()))
