"""Single outputs at the edge of a schema, and schemas that would cost more than they say."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.grammar_walk import GrammarWalker
from support.schema_judge import errors

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.grammars import json_rules, parse_schema, whole_grammar
from pagoda_gateway.text.schemas.check import check_schema
from pagoda_runtime.grammar import GrammarCompiler

TOKENIZER = Path(__file__).parents[4] / "demo/model/tokenizer.json"
EOS = 1
TUPLE = {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}
DATE = {"$id": "https://a.b/c", "$ref": "https://a.b/c#/x/y", "x": {"y": {"format": "date"}}}

NO_QUOTES = {"patternProperties": {'^[^"]*$': {"type": "integer"}}, "additionalProperties": False}


def text(**rules: Any) -> dict[str, Any]:
    return {"type": "string", **rules}


def typed(names: list[str]) -> dict[str, Any]:
    """Return an object of texts, but for these names, which have integers."""
    properties = {name: {"type": "integer"} for name in names}
    return {"type": "object", "properties": properties, "additionalProperties": {"type": "string"}}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER.read_text(), eos_token_ids=[EOS])


@pytest.fixture(scope="module")
def walker() -> GrammarWalker:
    return GrammarWalker(TOKENIZER.read_text(), eos_token_id=EOS)


@pytest.mark.parametrize(
    ("schema", "output"),
    [
        (typed(["ab"]), r'{"\u0061b":"x"}'),
        (typed(["é"]), r'{"\u00e9":"x"}'),
        (typed(["\n"]), r'{"\u000a":"x"}'),
        (typed(['"']), r'{"\u0022":"x"}'),
        (typed(["ab"]), '{"ab":1,"ab":"x"}'),
        (text(format="date"), '"2023-02-29"'),
        (text(format="date"), '"1900-02-29"'),
        (text(format="date"), '"0000-01-01"'),
        (text(format="date-time"), '"2023-02-29T10:00:00Z"'),
        (text(format="date-time"), '"2023-02-28T10:00:60Z"'),
        (text(format="time"), '"10:00:60Z"'),
        (text(format="hostname"), '"' + ".".join(["a" * 60] * 5) + '"'),
        ({**DATE, "type": "string"}, '"2023-02-29"'),
        ({**TUPLE, "additionalItems": False}, '["a", "b"]'),
        ({**TUPLE, "additionalItems": True}, '["a"]'),
        ({"type": "number", "multipleOf": 0.07}, "0.08"),
        ({"type": "number", "multipleOf": 0.07}, "0.035"),
        (text(pattern="^a.b$"), r'"a\rb"'),
        (text(pattern="^a.b$"), '"a\u2028b"'),
        (text(pattern=r"^a\sb$"), '"a\u0085b"'),
        (text(pattern=r"^a[\s]b$"), '"a\u0085b"'),
        (text(pattern=r"^\S$"), '"\ufeff"'),
        (text(pattern=r"^[^\s]$"), '"\ufeff"'),
        (text(pattern=r"^[\Sx]$"), '"\ufeff"'),
        (text(pattern='^[^"]*$'), r'"a\"b"'),
        (text(pattern=r"^[^\\]*$"), r'"a\\b"'),
        (text(pattern=r"^[\x00-\x21]$"), r'"\""'),
        (text(pattern=r"^(?<stop>a)b$"), '"b"'),
        (text(pattern="^[^-a]$"), '"-"'),
        (NO_QUOTES, r'{"\"":1}'),
    ],
)
def test_what_a_schema_forbids_cannot_be_written(
    schema: dict[str, Any], output: str, compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    assert errors(schema, output.encode())
    assert not walker.allows(compiler.compile(whole_grammar(json_rules(schema))).matcher(), output)


@pytest.mark.parametrize(
    ("schema", "output"),
    [
        (typed(["ab", "\n"]), r'{"ab":1,"\n":2,"é\t\"":"x"}'),
        (text(format="date"), '"2024-02-29"'),
        (text(format="date"), '"2000-02-29"'),
        (text(format="date"), '"2023-10-31"'),
        (text(format="date"), '"0099-12-01"'),
        (text(format="date-time"), '"2023-02-28T23:59:59.5+02:00"'),
        (text(format="hostname"), '"' + ".".join(["a" * 60] * 4) + '"'),
        (text(pattern=r"^[\w.\--]\[[a-z]$"), '"-[a"'),
        (text(pattern="^a&&b--c~~d$"), '"a&&b--c~~d"'),
        ({"type": "integer", "maximum": 2**63 - 1}, "9223372036854775807"),
        ({"type": "number", "multipleOf": 0.07}, "-0.14"),
        ({"type": "number", "multipleOf": 0.07, "maximum": 100}, "7"),
        (text(minLength=2.0, maxLength=2.0), '"ab"'),
        ({"type": "object", "minProperties": 1.0, "maxProperties": 1.0}, '{"a": 1}'),
        ({**TUPLE, "additionalItems": False}, '[1, "b"]'),
        (text(pattern="^a.b$"), '"a\u0085b"'),
        (text(pattern=r"^a\sb$"), '"a\ufeffb"'),
        (text(pattern=r"^[\S]$"), '"\u0085"'),
        (text(pattern='^[^"]*$'), r'"a\\\n\tb"'),
        (text(pattern=r"^[^\\]*$"), r'"a\"\n\tb"'),
        (text(pattern="^[^]$"), r'"\""'),
        (text(pattern=r"^[\b]\cJ\u{1F600}\ud83d\ude00$"), r'"\b\n😀😀"'),
        (text(pattern=r"^\-\_\@\<\ }]$"), '"-_@< }]"'),
        ({"type": "object", "minProperties": 1, "additionalProperties": {}}, '{"a":null}'),
    ],
)
def test_what_a_schema_allows_can_be_written(
    schema: dict[str, Any], output: str, compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    assert errors(schema, output.encode()) == []
    assert walker.allows(compiler.compile(whole_grammar(json_rules(schema))).matcher(), output)


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        ('{"items":' * 120 + "{}" + "}" * 120, "it is nested over 100 deep"),
        ('{"items":' * 500 + "{}" + "}" * 500, "Recursion limit"),
        ('{"const":' + "[" * 1000 + "]" * 1000 + "}", "Recursion limit"),
    ],
)
def test_nesting_is_refused_before_anything_recurses(nested: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_schema(parse_schema(nested))


def test_a_schema_larger_than_any_grammar_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequestError, match=r"it has 13.... bytes; the limit is 131072"):
        check_schema({"enum": ["x" * 130_000, *range(500)]})


def test_a_long_chain_of_references_takes_linear_time() -> None:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(3_500)}
    schema = {"$defs": {**chain, "a3500": {}}, "$ref": "#/$defs/a0"}

    started = time.process_time()
    check_schema(schema)
    assert time.process_time() - started < 1  # a tenth of it; squared it would be many of them


RECORD = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
    "propertyNames": {"enum": ["a", "c"]},
    "additionalProperties": {"type": "integer"},
}


@pytest.mark.parametrize(
    ("pattern", "rules"),
    [
        ("^ab$", {"required": ["ab"]}),
        ("^(?:ab)$", {"properties": {"ab": {"minimum": 0}}}),
        ("^[ab]$", {"properties": {"a": True}, "required": ["b"]}),
        ("^(a|b-c)$", {"required": ["b-c", "a"]}),
    ],
)
def test_after_the_last_name_there_can_be_no_other_is_waited_for(
    pattern: str, rules: dict[str, Any], compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    values = {"type": "integer", "maximum": 5}
    schema = {"patternProperties": {pattern: values}, "additionalProperties": False, **rules}
    compiled = compiler.compile(whole_grammar(json_rules({"type": "object", **schema})))
    names = [*rules.get("properties", ()), *sorted(rules.get("required", ()))]
    members = ",".join(f'"{name}":3' for name in names)

    assert walker.allows(compiled.matcher(), f"{{{members}}}")
    assert not walker.begins(compiled.matcher(), f"{{{members},")
    assert not walker.allows(compiled.matcher(), f"{{{members.replace('3', '7')}}}")


@pytest.mark.parametrize("output", ['{"a":"x","c":1}', '{"c":1}', "{}"])
def test_names_of_an_enum_may_all_be_there(
    output: str, compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    assert errors(RECORD, output.encode()) == []
    assert walker.allows(compiler.compile(whole_grammar(json_rules(RECORD))).matcher(), output)


@pytest.mark.parametrize("output", ['{"b":"x"}', '{"a":1}', '{"c":"x"}', '{"d":1}'])
def test_names_of_an_enum_are_all_there_can_be(
    output: str, compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    assert errors(RECORD, output.encode())
    assert not walker.allows(compiler.compile(whole_grammar(json_rules(RECORD))).matcher(), output)


def test_many_branches_take_bounded_time() -> None:
    branches = [{"type": "object", "properties": {"k": {"const": i}}} for i in range(2_000)]
    started = time.process_time()
    json_rules({"oneOf": branches})
    assert time.process_time() - started < 1  # a tenth of it; each with each would be a minute


def test_what_a_pattern_says_is_not_written_again_for_each_name() -> None:
    values: dict[str, Any] = {"type": "integer"}
    for _ in range(12):
        values = {
            "type": "object",
            "patternProperties": {"^[abcdefgh]$": values},
            "required": list("abcdefgh"),
        }
    assert len(json.dumps(json_rules(values))) < 20_000


@pytest.mark.parametrize("pointer", ["#/properties/a", "#/properties/a/properties/x"])
def test_references_to_what_a_pattern_speaks_of_mean_what_they_meant(
    pointer: str, compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    inner = {"type": "object", "properties": {"x": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"a": inner, "b": {"$ref": pointer}},
        "patternProperties": {"^a$": {"required": ["x"]}},
        "additionalProperties": False,
    }
    matcher = compiler.compile(whole_grammar(json_rules(schema))).matcher()
    output = '{"b":{}}' if pointer.endswith("a") else '{"b":"hello"}'
    assert errors(schema, output.encode()) == []
    assert walker.allows(matcher, output)
