"""Structure is counted on bytes, and strings are none of it."""

import random

import orjson
import pytest

from pagoda_gateway import json_limits
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.json_limits import check_structure, count_structure, json_problem


def slow_count(raw: bytes) -> tuple[int, int, int, int]:
    """The same, a byte at a time."""
    depth = deepest = containers = commas = members = 0
    is_string = is_escaped = False
    for byte in raw:
        if is_string:
            if is_escaped:
                is_escaped = False
            elif byte == ord("\\"):
                is_escaped = True
            elif byte == ord('"'):
                is_string = False
        elif byte == ord('"'):
            is_string = True
        elif byte in b"[{":
            depth, containers = depth + 1, containers + 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
        elif byte == ord(","):
            commas += 1
            members += depth == 1
    return deepest, containers, commas + containers, members + 1


@pytest.mark.parametrize("seed", range(50))
def test_counts_as_a_reader_would(seed: int) -> None:
    draw = random.Random(seed)

    def value(levels: int) -> object:
        kind = draw.randrange(4 if levels else 2)
        if kind == 0:
            return "".join(draw.choices('a"\\[]{},\n', k=draw.randrange(8)))
        if kind == 1:
            return draw.randrange(1000)
        if kind == 2:
            return [value(levels - 1) for _ in range(draw.randrange(4))]
        return {str(i): value(levels - 1) for i in range(draw.randrange(4))}

    raw = orjson.dumps([value(5) for _ in range(10)])
    assert count_structure(raw) == slow_count(raw)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"[" * 101 + b"]" * 101, "101 deep"),
        (b"[" + b"[]," * 70_000 + b"1]", "70001 objects"),
        (b"[" + b"1," * 1_300_000 + b"1]", "1300001 values"),
        (b'{"a":[1,2],' + b'"b":1,' * 70_000 + b'"c":1}', "70002 members at its top"),
    ],
)
def test_too_much_is_refused(raw: bytes, named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        check_structure(raw)


def test_many_values_below_the_top_are_none_of_its_members() -> None:
    check_structure(orjson.dumps({"prompt": [0] * 1_000_000, "logit_bias": {}}))


def test_brackets_in_text_are_text() -> None:
    check_structure(orjson.dumps({"content": '[{,"\\' * 500_000}))


def test_small_bodies_are_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_limits, "count_structure", None)
    check_structure(b'{"messages":[{"role":"user","content":"hello"}]}')


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ('{"a": "\u00e9"}'.encode("latin-1"), "it is not UTF-8: byte 0xe9 at 7"),
        (b"\x1f\x8b\x08{}", "it is not UTF-8: byte 0x8b at 1"),
        ("{}".encode("utf-8-sig"), "it begins with a byte order mark"),
        ("{}".encode("utf-16"), "it begins with a byte order mark"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"{", "unexpected end"),
    ],
)
def test_what_is_no_json_is_said_as_one_can_mend_it(raw: bytes, problem: str) -> None:
    with pytest.raises(orjson.JSONDecodeError) as raised:
        orjson.loads(raw)
    assert problem in json_problem(raw, raised.value)
