import json

import pytest
from support.demo import tokenizer_json

from pagoda_runtime.errors import GrammarError
from pagoda_runtime.grammar import MAX_CACHED, MAX_GRAMMAR_BYTES, GrammarCompiler


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer_json(), eos_token_ids=[1])


def lark(text: str) -> str:
    return json.dumps({"grammars": [{"name": "output", "lark_grammar": text}]})


def test_a_grammar_is_compiled_once_and_followed_by_many(compiler: GrammarCompiler) -> None:
    text = lark('start: "a" "b"')
    assert compiler.cached(text) is None
    compiled = compiler.compile(text)
    assert compiler.cached(text) is compiled
    first, second = compiled.matcher(), compiled.matcher()
    assert first.consume_tokens(first.compute_ff_tokens())
    assert first.is_stopped()
    assert not second.is_stopped()


def test_what_is_wrong_says_why(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="unknown name"):
        compiler.compile(lark("start: nothing"))
    assert compiler.cached(lark("start: nothing")) is None


def test_what_is_too_large_is_not_compiled(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match=f"the limit is {MAX_GRAMMAR_BYTES}"):
        compiler.compile("x" * (MAX_GRAMMAR_BYTES + 1))


def test_a_grammar_without_any_first_token_is_refused(compiler: GrammarCompiler) -> None:
    schema = {"$ref": "#"}
    with pytest.raises(GrammarError):
        compiler.compile(json.dumps({"grammars": [{"json_schema": schema}]}))


def test_only_the_latest_are_remembered(compiler: GrammarCompiler) -> None:
    texts = [lark(f'start: "{i}"') for i in range(MAX_CACHED + 1)]
    for text in texts:
        compiler.compile(text)
    assert compiler.cached(texts[0]) is None
    assert compiler.cached(texts[1]) is not None


def test_a_tokenizer_of_no_kind_is_an_error() -> None:
    with pytest.raises(GrammarError, match="no grammars with this tokenizer"):
        GrammarCompiler('{"model": {}}')
