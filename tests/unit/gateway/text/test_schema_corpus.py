"""JSON schemas as people write them: what is accepted always holds, what is not says why."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.grammar_walk import GrammarWalker
from support.schema_judge import errors
from support.seeds import seed_of_tests

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.grammar_checker import (
    COMPILE_SECONDS,
    GrammarChecker,
    GrammarThreads,
    Source,
)
from pagoda_gateway.text.grammars import json_rules, whole_grammar
from pagoda_runtime.grammar import GrammarCompiler

ROOT = Path(__file__).parents[4]
EOS = 1
WALKS = 2
TRIES = 12


def corpus(*, refused: bool) -> list[Any]:
    """Return schemas and, where they are refused, a part of the message."""
    entries = [
        entry
        for path in sorted((ROOT / "tests/schemas").glob("*.json"))
        for entry in json.loads(path.read_text())
        if ("refused" in entry) == refused
    ]
    values = ("schema", "refused") if refused else ("schema",)
    return [pytest.param(*(e[value] for value in values), id=e["name"]) for e in entries]


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    return (ROOT / "demo/model/tokenizer.json").read_text()


@pytest.fixture(scope="module")
def compiler(tokenizer_json: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer_json, eos_token_ids=[EOS])


@pytest.fixture
def checker(compiler: GrammarCompiler) -> Iterator[GrammarChecker]:
    threads = GrammarThreads()
    yield GrammarChecker(compiler, threads)
    threads.close()


@pytest.fixture(scope="module")
def walker(tokenizer_json: str) -> GrammarWalker:
    return GrammarWalker(tokenizer_json, eos_token_id=EOS)


@pytest.fixture
def seed() -> str:
    return str(seed_of_tests())


async def check(checker: GrammarChecker, schema: dict[str, Any]) -> None:
    rules = json_rules(schema)
    await checker.check(whole_grammar(rules), [Source("x", rules, schema=schema)], "acme")


@pytest.mark.parametrize("schema", corpus(refused=False))
def test_what_is_accepted_always_holds(
    schema: dict[str, Any], compiler: GrammarCompiler, walker: GrammarWalker, seed: str
) -> None:
    compiled = compiler.compile(whole_grammar(json_rules(schema)))
    assert compiled.seconds < COMPILE_SECONDS

    num_ended = 0
    for start in (seed, *range(TRIES)):  # of those that are always the same, one finds an end
        output = walker.walk(compiled.matcher(), random.Random(start))
        if output is None:
            continue
        assert errors(schema, output) == [], output
        num_ended += 1
        if num_ended == WALKS:
            break
    assert num_ended


@pytest.mark.parametrize(("schema", "message"), corpus(refused=True))
async def test_what_is_refused_says_why_and_where(
    schema: dict[str, Any], message: str, checker: GrammarChecker
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        await check(checker, schema)
    assert message in str(refusal.value)
    assert "at the top" in message or "at '/" in message or "over 100 deep" in message


def beyond(kind: str, keyword: str, bound: float) -> list[Any]:
    """Return a bound, and whole numbers about it and about what it may be held as."""
    edges = {int(bound), *(sign * edge for sign in (1, -1) for edge in (2**53, 10**18, 2**63 - 1))}
    texts = [str(edge + by) for edge in sorted(edges) for by in (-1, 0, 1)]
    return [{"type": kind, keyword: bound}, texts]


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        beyond(kind, keyword, sign * bound)
        for kind in ("integer", "number")
        for keyword, sign in (
            ("minimum", -1), ("maximum", 1), ("exclusiveMinimum", -1), ("exclusiveMaximum", 1)
        )
        for bound in (
            2**53, 2**53 + 1, 10**17 - 143, 10**18 - 1, 10**18, 862405857259623970, 2**63 - 1024,
            2**63 - 2, 2**63 - 1, 2**63, 999999999999999872.0, 1e300,
        )
    ],
)  # fmt: skip
def test_bounds_far_out_let_nothing_through_that_is_further(
    schema: dict[str, Any], texts: list[str], compiler: GrammarCompiler, walker: GrammarWalker
) -> None:
    compiled = compiler.compile(whole_grammar(json_rules(schema)))
    assert walker.allows(compiled.matcher(), "5") or walker.allows(compiled.matcher(), "-5")
    allowed = [text for text in texts if walker.allows(compiled.matcher(), text)]
    assert [errors(schema, text) for text in allowed] == [[] for _ in allowed]
