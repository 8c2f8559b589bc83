"""Harmony, gpt-oss' format: an output is messages, each with a channel and maybe a recipient.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>`
and `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`. The first
message's `<|start|>assistant` is the prompt's end; `<|return|>` and `<|call|>` end an output.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from pagoda_gateway.dialects.grammar import Calls, Tool, bounded, check_names, json_text, mark
from pagoda_gateway.dialects.parts import ContentText, OutputParser, ReasoningText
from pagoda_gateway.dialects.source import Reading, Sink
from pagoda_gateway.dialects.stream_parser import StreamParser

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_ENDS = (END, CALL, RETURN)
_SIGN = re.compile("<")
_BETWEEN = "\n\n"
"""Between two messages that a client gets as one text."""

_FUNCTIONS = "functions."
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_NAME_END = re.compile(r"[\s<]")


class Harmony:
    """The family."""

    name = "harmony"
    marks = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
    call_id_chars = None

    def parser(self, tools: Sequence[Tool], prompt: str = "") -> OutputParser:
        """Return a parser of one output, which goes on where the prompt ends."""
        return _Parser(frozenset(tool.name for tool in tools), *unfinished(prompt))

    def prefix_rules(
        self, prompt: str, token_ids: Mapping[str, int], budget: int | None = None
    ) -> str:
        """Return `prefix`, messages of analysis; empty inside a message of the prompt's.

        `budget`: there is one message at most, of so many tokens.
        """
        header, is_inside = unfinished(prompt)
        if is_inside:
            return ""
        channel, message, end, start = _marks((CHANNEL, MESSAGE, END, START), token_ids)
        begin = "" if header else f'({start} "assistant")? '
        again = f'{start} "assistant"'
        if budget is not None:
            thoughts, rule = bounded("thought_words", budget)
            return (
                f"prefix: {begin}thought?\n"
                f'thought: {channel} "analysis" {message} {thoughts} {end} {again}{rule}'
            )
        lazy = "" if END in token_ids else "[lazy]"  # text would run over a mark that is text
        return (
            f"prefix: {begin}thought*\n"
            f'thought: {channel} "analysis" {message} thought_text {again}\n'
            f"thought_text{lazy}: /(?s:.*)/ {end}"
        )

    def bounds_reasoning(self, prompt: str, token_ids: Mapping[str, int]) -> bool:
        """Return whether a grammar can bound the analysis of an output."""
        is_inside = unfinished(prompt)[1]
        return not is_inside and all(m in token_ids for m in (CHANNEL, MESSAGE, END, START))

    def free_answer(self, token_ids: Mapping[str, int]) -> str:
        """Return `calls`, any answer that begins with a message that is no analysis."""
        channel = mark(CHANNEL, token_ids)
        early = f'" to=" /[^<]*/ {channel} "commentary"'
        return f'calls: ({channel} ("final" | "commentary") | {early}) <[*]>*'

    def text_opening(self, prompt: str, token_ids: Mapping[str, int]) -> str:
        """Return the rules' words for what comes before the text of an answer."""
        if unfinished(prompt)[1]:
            return ""
        channel, message = _marks((CHANNEL, MESSAGE), token_ids)
        return f'{channel} "final" {message}'

    def calls_rules(self, calls: Calls) -> list[str]:
        """Return the rules of `calls`: one call, as its end is the output's.

        Raises:
            InvalidRequestError: a name that this format cannot hold.
        """
        check_names(calls.tools, _NAME_END, "a space and '<'")
        channel, constrain, message = _marks((CHANNEL, CONSTRAIN, MESSAGE), calls.token_ids)
        names = " | ".join(f"call_{i}" for i in range(len(calls.tools)))
        rules = [
            f"calls: {names}" if calls.at_least_one else f"calls: call_text | {names}",
            f'call_kind: (" " {constrain}? "json")? {message}',
        ]
        for i, tool in enumerate(calls.tools):
            to = f" to={_FUNCTIONS}{tool.name}"
            late, early = json_text(f"commentary{to}"), f'{json_text(to)} {channel} "commentary"'
            head = f"({channel} {late} | {early}) call_kind"
            rules.append(f"call_{i}: {head} %json {json_text(tool.arguments)}")
        if not calls.at_least_one:
            rules.append(f'call_text: {channel} "final" {message} CALL_TEXT')
            rules.append("CALL_TEXT: /(?s:.*)/")
        return rules


def _marks(marks: Sequence[str], token_ids: Mapping[str, int]) -> list[str]:
    return [mark(text, token_ids) for text in marks]


def unfinished(prompt: str) -> tuple[str, bool]:
    """Return the header of the message that a prompt's end has begun, and whether it goes on in it.

    Otherwise it goes on in the header. `prompt` may be the end of a longer one.
    """
    _, start, rest = prompt.rpartition(START)
    header, opened, _ = rest.partition(MESSAGE)
    if any(end in rest for end in _ENDS):
        return "", False
    if not start:
        return "", bool(rest)  # of a message that is longer than what is known
    return header, bool(opened)


def called_function(header: str, names: Collection[str]) -> str:
    """Return which of these functions a message of this header calls; empty: none."""
    recipient = _RECIPIENT.search(header)
    if not names or recipient is None:
        return ""
    name = recipient[1].removeprefix(_FUNCTIONS)
    return name if name != recipient[1] or name in names else ""


def is_thought(header: str, names: Collection[str]) -> bool:
    """Return whether a message of this header, with these functions to call, is reasoning."""
    if called_function(header, names):
        return False
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    if recipient is not None and not recipient[1].startswith(_FUNCTIONS):
        return True  # for a tool that no client has
    return channel is not None and channel[1] == "analysis"


class _Parser(StreamParser):
    def __init__(self, names: frozenset[str], header: str, is_inside: bool) -> None:
        super().__init__()
        self._names = names
        self._header = header
        self._is_inside = is_inside
        self._is_new = False  # nothing of the message has gone out
        self._kinds = set[type[ContentText | ReasoningText]]()  # that have gone out

    def _read(self) -> Reading[None]:
        while self._is_inside or (yield from self._read_header()):
            self._is_inside = False
            yield from self._read_message()

    def _read_header(self) -> Reading[bool]:
        """Read up to and with the mark before a message's text; False: the text has ended.

        Text where a mark should be is a message: that is how models write that know no channels.
        """
        yield from self._source.whitespace()
        while (yield from self._mark(_ENDS)):
            yield from self._source.whitespace()
        if not (yield from self._source.peek()):
            return False
        begun = yield from self._mark((START, CHANNEL, CONSTRAIN, MESSAGE, f"to={_FUNCTIONS}"))
        if begun == MESSAGE:
            return True
        if not begun and CHANNEL not in self._header and START not in self._header:
            self._header = ""
            return True
        held = [self._header, " ", begun]
        opened = yield from self._source.until(MESSAGE, held.append)
        self._header = "".join(held).rpartition(START)[2]
        return opened

    def _read_message(self) -> Reading[None]:
        """Read the text of a message and what ends it."""
        sink = self._sink()
        self._header, self._is_new = "", True
        while True:
            yield from self._source.while_not(_SIGN, sink)
            ended = yield from self._mark((*_ENDS, START, CHANNEL))
            if ended in (START, CHANNEL):  # of the next message: this one's end was left out
                self._header = ended
            if ended or not (yield from self._source.peek()):
                return
            yield from self._source.mark("<")
            sink("<")

    def _mark(self, marks: Sequence[str]) -> Reading[str]:
        """Read the one of these that comes next; "" for none."""
        for text in marks:
            if (yield from self._source.mark(text)):
                return text
        return ""

    def _sink(self) -> Sink:
        """Return what takes the text of the message that the header announces."""
        if name := called_function(self._header, self._names):
            self._start_call(name)
            return self._arguments
        return self._thought if is_thought(self._header, self._names) else self._answer

    def _thought(self, text: str) -> None:
        self._parts.append(ReasoningText(self._apart(ReasoningText) + text))

    def _answer(self, text: str) -> None:
        self._parts.append(ContentText(self._apart(ContentText) + text))

    def _apart(self, kind: type[ContentText | ReasoningText]) -> str:
        """Return what is between this text and that of the message before of this kind."""
        is_between = self._is_new and kind in self._kinds
        self._is_new = False
        self._kinds.add(kind)
        return _BETWEEN if is_between else ""
