import json
import re

import numpy as np
import pytest
from support.demo import tokenizer_json
from tokenizers import Tokenizer

from pagoda_runtime.errors import GrammarError
from pagoda_runtime.grammar import (
    IDLE_SECONDS,
    MAX_CACHED,
    MAX_GRAMMAR_BYTES,
    MAX_LEXER_STATES,
    GrammarCompiler,
)


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


@pytest.mark.parametrize("rules", ["start: start", "start: a\na: b\nb: a"])
def test_a_grammar_whose_texts_do_not_end_is_refused_by_words(
    compiler: GrammarCompiler, rules: str
) -> None:
    with pytest.raises(GrammarError, match="no text of it ends"):
        compiler.compile(lark(rules))


def test_only_the_latest_are_remembered(compiler: GrammarCompiler) -> None:
    texts = [lark(f'start: "{i}"') for i in range(MAX_CACHED + 1)]
    for text in texts:
        compiler.compile(text)
    assert compiler.cached(texts[0]) is None
    assert compiler.cached(texts[1]) is not None


def test_what_nobody_asks_for_is_forgotten_when_another_comes() -> None:
    now = 0.0
    compiler = GrammarCompiler(tokenizer_json(), eos_token_ids=[1], clock=lambda: now)
    idle, used, new = (lark(f'start: "{name}"') for name in ("idle", "used", "new"))
    compiler.compile(idle)
    compiler.compile(used)
    now = IDLE_SECONDS
    assert compiler.cached(used) is not None
    now += 1
    compiler.compile(new)
    assert compiler.cached(idle) is None
    assert compiler.cached(used) is not None
    now += 2 * IDLE_SECONDS
    assert compiler.cached(used) is None


def test_what_is_compiled_apart_is_nobody_elses(compiler: GrammarCompiler) -> None:
    text = lark('start: "apart"')
    compiler.compile_apart(text)
    assert compiler.cached(text) is None


def test_only_what_is_remembered_is_forgotten(compiler: GrammarCompiler) -> None:
    text = lark('start: "twice"')
    former, latter = compiler.compile(text), compiler.compile(text)
    compiler.forget(former)
    assert compiler.cached(text) is latter
    compiler.forget(latter)
    assert compiler.cached(text) is None


@pytest.mark.slow
def test_the_states_of_a_lexer_have_a_limit(compiler: GrammarCompiler) -> None:
    """Each place of an output brings states that no other has had, and all are kept."""
    text = json.dumps({"grammars": [{"lark_grammar": r"start: /(.|\n)*[aeiou](.|\n){150}/"}]})
    compiled = compiler.compile(text)
    assert compiled.limit_met() == ""
    rng = np.random.default_rng(0)
    for _ in range(100):
        matcher = compiled.matcher()
        for _ in range(500):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            if matcher.is_error():
                break
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            matcher.consume_token(int(rng.choice(allowed[allowed != 1])))
    assert f"too many states: {MAX_LEXER_STATES}" in compiled.limit_met()


def test_a_tokenizer_of_no_kind_is_an_error() -> None:
    with pytest.raises(GrammarError, match="no grammars with this tokenizer"):
        GrammarCompiler('{"model": {}}')


def followed(compiler: GrammarCompiler, text: str) -> list[int]:
    """Return a way through a grammar: what is forced, and else the first token that may come."""
    matcher = compiler.compile(text).matcher()
    token_ids: list[int] = []
    while not matcher.is_stopped():
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        assert allowed, matcher.get_error()
        forced = matcher.compute_ff_tokens()
        assert allowed == forced[:1] or not forced
        if allowed == list(compiler.eos_token_ids):
            break
        token_ids.append(next(i for i in allowed if i not in compiler.eos_token_ids))
        assert matcher.consume_token(token_ids[-1]), matcher.get_error()
    return token_ids


@pytest.mark.parametrize("mark", ["<|end|>", "<|user|>", "<|pad|>", "<think>", "[INST]", "</s>"])
def test_text_that_looks_like_a_special_token_is_text(mark: str) -> None:
    described = json.loads(tokenizer_json())
    first = max(described["model"]["vocab"].values()) + 1
    kinds = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    names = [("<think>", False), ("[INST]", True), ("</s>", True), ("   ", False)]
    described["added_tokens"] += [
        {"id": first + i, "content": name, "special": special, **kinds}
        for i, (name, special) in enumerate(names)
    ]
    compiler = GrammarCompiler(json.dumps(described), eos_token_ids=[1])
    tokenizer = Tokenizer.from_str(json.dumps(described))
    special = {token["id"] for token in described["added_tokens"]} - {first + len(names) - 1}
    wanted = f"a{mark}   b{mark}"
    pattern = re.escape(mark).replace("/", r"\/")
    for rule in (json.dumps(wanted), f'"a" /{pattern}/ "   b" "{mark}"'):
        found = followed(compiler, lark(f"start: {rule}"))
        assert special.isdisjoint(found)
        assert tokenizer.decode(found, skip_special_tokens=True) == wanted


def mask_of(compiler: GrammarCompiler, text: str) -> list[int]:
    mask = np.frombuffer(compiler.compile(text).matcher().compute_bitmask(), np.uint8)
    return [int(i) for i in np.flatnonzero(np.unpackbits(mask, bitorder="little"))]


def test_ids_that_are_no_tokens_are_in_the_mask_and_never_allowed() -> None:
    described = json.loads(tokenizer_json())
    num_tokens = max(described["model"]["vocab"].values()) + 1
    kinds = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    last = {"id": num_tokens + 9, "content": "<last>", "special": True, **kinds}
    described["added_tokens"].append(last)  # nine ids before it are nothing's
    any_text = lark("start: /(?s:.*)/")
    compiler = GrammarCompiler(json.dumps(described), vocab_size=2560, eos_token_ids=[1])
    assert len(compiler.compile(any_text).matcher().compute_bitmask()) >= 2560 // 8
    bare = GrammarCompiler(tokenizer_json(), eos_token_ids=[1])
    assert mask_of(compiler, any_text) == mask_of(bare, any_text)


def test_text_that_the_tokenizer_normalises_is_written_as_it_is() -> None:
    described = json.loads(tokenizer_json()) | {"normalizer": {"type": "NFC"}}
    compiler = GrammarCompiler(json.dumps(described), eos_token_ids=[1])
    text = "a \u212b and e\u0301"
    tokenizer = Tokenizer.from_str(tokenizer_json())
    assert tokenizer.decode(followed(compiler, lark(f"start: {json.dumps(text)}"))) == text


def test_a_special_token_that_a_grammar_names_is_one(compiler: GrammarCompiler) -> None:
    assert followed(compiler, lark('start: <|user|> <[5]> "!"')) == [3, 5, 6]


def test_forced_text_is_tokenised_as_a_prompt_is(compiler: GrammarCompiler) -> None:
    text = "What news from Rome, good sir?"
    wanted = Tokenizer.from_str(tokenizer_json()).encode(text, add_special_tokens=False).ids
    assert followed(compiler, lark(f"start: {json.dumps(text)}")) == wanted
