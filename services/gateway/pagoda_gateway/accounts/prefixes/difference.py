"""What kind of difference there is between two texts at one place. Knows no tokens."""

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson

from pagoda_gateway.accounts.prefixes.kinds import Kind
from pagoda_gateway.accounts.prefixes.outline import Outline

MAX_SHOWN_CHARS = 80
MAX_COUNTED_STEP = 1000
_AROUND_CHARS = 64
_MAX_OBJECT_CHARS = 1 << 14
_MAX_OBJECTS = 8  # enclosing ones that are tried

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_TIMES = re.compile(
    "|".join(
        (
            rf"\b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T ]{_CLOCK}(?:Z|[+-]\d{{2}}:?\d{{2}})?)?",
            r"\b\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}\b",
            rf"\b{_CLOCK}(?:\s*[AaPp]\.?[Mm]\b\.?)?",
            r"\b\d{8}T?\d{4,6}Z?\b",
            rf"\b{_MONTH}\.?\s+{_DAY}(?:,?\s+\d{{4}})?\b",
            rf"\b{_DAY}\.?\s+{_MONTH}\b(?:,?\s+\d{{4}})?",
            rf"\b{_MONTH}\s+\d{{4}}\b",
            r"\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b",
            r"\b1\d{9}(?:\d{3}){0,3}(?:\.\d+)?\b",
        )
    )
)
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b")
_WORD = re.compile(r"[A-Za-z0-9_-]{8,}")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?![\w]|\.\d)")
_ATOM = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")
_MIN_DIGIT_CHANGES = 3  # between letters and digits: "gpt-4-turbo" has 2
_MIN_CASE_CHANGES = 6  # between lower, upper and digits: "GenerationHandler" has 3
_MIN_ID_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two prompts.

    Attributes:
        text: of all of it, or of its beginning.
        outline: of its structure.
        gap_end: where the text goes on as the other one does.
    """

    text: str
    outline: Outline
    gap_end: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs: its class and both texts, cut to `MAX_SHOWN_CHARS`."""

    kind: Kind
    earlier_text: str
    later_text: str


def difference(earlier: Side, later: Side, position: int) -> Difference:
    """Classify the first difference of two texts.

    Args:
        earlier: the remembered prompt.
        later: the prompt that missed.
        position: of the first character that differs, in both.
    """
    for kind, pattern in (("uuid", _UUID), ("timestamp", _TIMES), ("uuid", _WORD)):
        found = _both(pattern, earlier.text, later.text, position)
        if found is not None and (pattern is not _WORD or _are_ids(*found)):
            return _shown(kind, *found)  # type: ignore[arg-type]
    regions = _region(earlier, position), _region(later, position)
    kind_of_whole = _rearranged(*regions, earlier, later, position)
    gaps = earlier.text[position : earlier.gap_end], later.text[position : later.gap_end]
    if kind_of_whole is not None:
        return _shown(kind_of_whole, *gaps)
    numbers = _both(_NUMBER, earlier.text, later.text, position)
    if numbers is not None and not all(map(_is_long, numbers)):
        is_counted = abs(_value(numbers[0]) - _value(numbers[1])) <= MAX_COUNTED_STEP
        return _shown("counter" if is_counted else "edited", *numbers)
    if numbers is not None:
        return _shown("uuid", *numbers)
    if _squeezed(gaps[0]) == _squeezed(gaps[1]):
        return _shown("whitespace", *gaps)
    return _shown("edited", *gaps)


def first_difference(earlier: str, later: str) -> int:
    """Return the first index at which two texts differ."""
    low, high = 0, min(len(earlier), len(later))
    while low < high:  # slices are compared at once, characters are not
        middle = (low + high + 1) // 2
        if earlier[low:middle] == later[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _both(
    pattern: re.Pattern[str], earlier: str, later: str, position: int
) -> tuple[str, str] | None:
    """Return what a pattern matches at the position in both texts."""
    start = max(0, position - _AROUND_CHARS)
    found = []
    for text in (earlier, later):
        end = min(len(text), position + _AROUND_CHARS)
        match = next(
            (m for m in pattern.finditer(text, start, end) if m.start() <= position <= m.end()),
            None,
        )
        if match is None:
            return None
        found.append(match[0])
    return (found[0], found[1]) if found[0] != found[1] else None


def _are_ids(earlier: str, later: str) -> bool:
    """Tell two drawn ids; one of them may happen to look like a word."""
    return len(earlier) == len(later) and (_is_id(earlier) or _is_id(later))


def _is_id(word: str) -> bool:
    """Tell letters and digits that were drawn from a word with a number in it."""
    pairs = list(itertools.pairwise(word.replace("-", "").replace("_", "")))
    if sum(a.isdigit() != b.isdigit() for a, b in pairs) >= _MIN_DIGIT_CHANGES:
        return True
    cases = sum((a.isdigit(), a.isupper()) != (b.isdigit(), b.isupper()) for a, b in pairs)
    return cases >= _MIN_CASE_CHANGES


def _is_long(number: str) -> bool:
    return len(number) >= _MIN_ID_DIGITS


def _value(number: str) -> int:
    return int(number.replace(",", ""))


def _region(side: Side, position: int) -> str:
    region = side.outline.region_at(side.text, min(position, len(side.text)))
    return side.text[region.start : region.end]


def _rearranged(
    earlier_region: str, later_region: str, earlier: Side, later: Side, position: int
) -> Kind | None:
    """Tell whether the same content is written in another way around the position."""
    place = later.outline.region_at(later.text, position).place
    names = earlier.outline.tool_names, later.outline.tool_names
    is_tools = place.name == "tools"
    if is_tools and names[0] != names[1] and set(names[0]) == set(names[1]):
        return "reordered_tools"
    json_kind = _json_kind(earlier.text, later.text, position)
    if json_kind is not None:
        return json_kind
    if earlier_region == later_region:
        return None
    if _squeezed(earlier_region) == _squeezed(later_region):
        return "whitespace"
    if not (is_tools or '":' in later_region or "':" in later_region):
        return None
    if Counter(_ATOM.findall(earlier_region)) == Counter(_ATOM.findall(later_region)):
        return "reordered_json_keys"
    return None


def _json_kind(earlier: str, later: str, position: int) -> Kind | None:
    """Compare the JSON objects around the position, the innermost first."""
    start = position
    for _ in range(_MAX_OBJECTS):
        start = max(later.rfind("{", 0, start), later.rfind("[", 0, start))
        if start < 0 or position - start > _MAX_OBJECT_CHARS:
            return None
        pair = _object_at(earlier, start), _object_at(later, start)
        values = [_parsed(text) for text in pair]
        if None in values or min(map(len, pair)) <= position - start:
            continue  # not JSON, or over before the difference
        if _sorted_json(values[0]) != _sorted_json(values[1]):
            continue
        return "whitespace" if orjson.dumps(values[0]) == orjson.dumps(values[1]) else (
            "reordered_json_keys"
        )  # fmt: skip
    return None


def _object_at(text: str, start: int) -> str:
    """Return the text from a bracket to the one that closes it; "" if none does."""
    depth, is_quoted, is_escaped = 0, False, False
    for index in range(start, min(len(text), start + _MAX_OBJECT_CHARS)):
        char = text[index]
        if is_quoted:
            if is_escaped:
                is_escaped = False
            elif char == "\\":
                is_escaped = True
            elif char == '"':
                is_quoted = False
        elif char == '"':
            is_quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if not depth:
                return text[start : index + 1]
    return ""


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _sorted_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _squeezed(text: str) -> str:
    return _SPACE.sub("", text)


def _shown(kind: Kind, earlier: str, later: str) -> Difference:
    return Difference(kind, earlier[:MAX_SHOWN_CHARS], later[:MAX_SHOWN_CHARS])
