"""Tools that take a text: what a call's arguments are read as, cut anywhere."""

import json
import time
from collections.abc import Sequence

import pytest

from pagoda_gateway.dialects import CallArguments, CallStart, Dialect, Part, Tool, read_parts

TOOLS = [Tool("patch"), Tool("look")]


def parts_of(pieces: Sequence[str]) -> list[Part]:
    parser = Dialect.of("", "hermes").parser(TOOLS, texts={"patch"})
    return [
        part
        for i, piece in enumerate(pieces)
        for part in read_parts(parser, piece, is_last=i == len(pieces) - 1)
    ]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def text_of(pieces: Sequence[str]) -> str:
    return "".join(part.text for part in parts_of(pieces) if isinstance(part, CallArguments))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a"}', "a"),
        ('{"input": ""}', ""),
        ('{ "patch" : "a", "why": "b"}', "a"),
        (
            r'{"input": "a\n\t\"b\"\\n \/ \u00e9 \ud83d\ude00 \\ud83d"}',
            'a\n\t"b"\\n / é 😀 \\ud83d',
        ),
        ('{"input": "a\nb"}', "a\nb"),
        (r'{"input": "\d+ \uzz \ud83d"}', "\\d+ \\uzz �"),
        (r'{"input": "\\\ud83d\ude00\\"}', "\\😀\\"),
        ('{"input": ["a"]}', '{"input": ["a"]}'),
        ("{}", "{}"),
        ('{"' + "k" * 300 + '": "a"}', '{"' + "k" * 300 + '": "a"}'),
    ],
)
def test_arguments_as_a_text_cut_anywhere(arguments: str, text: str) -> None:
    written = call("patch", arguments)
    assert text_of([written]) == text
    assert text_of(list(written)) == text
    for at in range(len(written)):
        assert text_of([written[:at], written[at:]]) == text


@pytest.mark.parametrize("text", ["", "{}", '"', "\\", "\\u", 'x": "', "\x00\x1f\x7f", "a" * 999])
def test_any_text_comes_back(text: str) -> None:
    for ascii_only in (False, True):
        written = call("patch", json.dumps({"input": text}, ensure_ascii=ascii_only))
        assert text_of(list(written)) == text


def test_other_calls_stay_as_they_are() -> None:
    arguments = '{"input": "a\\n"}'
    written = call("look", arguments) + call("patch", arguments) + call("look", arguments)
    parts = parts_of([written])
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert starts == [
        CallStart(0, "look"),
        CallStart(1, "patch", takes_text=True),
        CallStart(2, "look"),
    ]
    texts = ["".join(p.text for p in parts if isinstance(p, CallArguments) and p.index == i)
             for i in range(3)]  # fmt: skip
    assert texts == [arguments, "a\n", arguments]
    written_as = [p.json for p in parts if isinstance(p, CallArguments) and p.index == 1]
    assert "".join(written_as) == arguments


def test_a_text_that_is_cut_has_what_is_there() -> None:
    written = call("patch", r'{"input": "a\n\u00e9b"}')
    begun = written.index("a\\n")
    assert text_of([written[: begun + 4]]) == "a\n"
    assert text_of([written[: begun + 2]]) == "a"
    assert text_of([written[:begun]]) == ""


def test_a_text_of_backslashes_takes_no_time() -> None:
    begun = '<tool_call>\n{"name": "patch", "arguments": {"input": "'
    started = time.process_time()
    assert text_of([begun + "\\" * 400_000]) == "\\" * 200_000
    assert text_of([begun + "\\" * 401 + "ud83d", "\\ude00"]) == "\\" * 200 + "😀"
    assert time.process_time() - started < 2  # it took minutes
