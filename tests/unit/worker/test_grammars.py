import asyncio
import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLParserLimits
from support.demo import DEMO_MODEL, tokenizer_json
from tokenizers import Tokenizer

from pagoda_engine import TokenMask, TokenMaskError
from pagoda_runtime import grammar
from pagoda_runtime.errors import GrammarError
from pagoda_worker.grammars import GIVE_BACK_SECONDS, GrammarMask, Grammars

VOCAB_SIZE, EOS = 2048, 1
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = json.dumps({"grammars": [{"name": "output", "json_schema": SCHEMA}]})


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars.load(DEMO_MODEL, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json())


def allowed(mask: TokenMask, output: list[int]) -> list[int]:
    words = mask.bitmask(output)
    assert words.dtype == np.int32
    assert words.shape == (VOCAB_SIZE // 32,)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def walk(mask: TokenMask, seed: int, output: list[int] | None = None) -> list[int]:
    """Go on with an output as a model that chooses at random, up to its end."""
    output = list(output or [])
    while not output or output[-1] != EOS:
        # The same choice at the same place, whatever was asked before.
        draw = random.Random(f"{seed} {len(output)}")
        output.append(draw.choice(allowed(mask, output)))
        forced = list(mask.forced(output)) if output[-1] != EOS else []
        output += forced
    return output


async def test_an_output_follows_its_grammar_to_the_end(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    for seed in range(20):
        output = walk(await grammars.mask(GRAMMAR), seed)
        value = json.loads(tokenizer.decode(output))
        assert value.keys() == {"name", "n"}, (seed, value)


async def test_it_is_the_same_wherever_the_output_was_cut(grammars: Grammars) -> None:
    for seed in range(5):
        whole = walk(await grammars.mask(GRAMMAR), seed)
        for cut in range(len(whole)):
            assert walk(await grammars.mask(GRAMMAR), seed, whole[:cut]) == whole, (seed, cut)


async def test_what_is_forced_is_the_only_choice(grammars: Grammars) -> None:
    mask = await grammars.mask(GRAMMAR)
    forced = list(mask.forced([]))
    assert len(forced) > 3
    for i in range(len(forced)):
        assert allowed(mask, forced[:i]) == [forced[i]]


async def test_the_end_is_forced_when_nothing_can_follow(grammars: Grammars) -> None:
    mask = await grammars.mask(json.dumps({"grammars": [{"lark_grammar": 'start: "a"'}]}))
    (letter,) = mask.forced([])
    assert mask.forced([letter]) == [EOS]


async def test_a_token_against_the_grammar_is_an_error(grammars: Grammars) -> None:
    mask = await grammars.mask(GRAMMAR)
    with pytest.raises(TokenMaskError, match="the grammar"):
        mask.bitmask([EOS, EOS])


async def test_a_bad_grammar_is_refused(grammars: Grammars) -> None:
    with pytest.raises(GrammarError):
        await grammars.mask("no grammar")


async def test_compiling_lets_the_loop_go_on(grammars: Grammars) -> None:
    values = [f"value{i}" for i in range(8000)]
    large = json.dumps({"grammars": [{"json_schema": {"enum": values}}]})
    compiling = asyncio.create_task(grammars.mask(large))
    await asyncio.sleep(0)
    assert not compiling.done()
    await compiling


async def test_states_that_others_have_filled_do_not_end_an_output(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states of a grammar's lexer are shared and limited; here others have used them up."""
    mask = await grammars.mask(GRAMMAR)
    output = walk(await grammars.mask(GRAMMAR), seed=3)
    calls = 0

    def full(_matcher: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise GrammarError("too many states")

    monkeypatch.setattr("pagoda_worker.grammars.check", full)
    assert mask.forced(output[:-2]) == (await grammars.mask(GRAMMAR)).forced(output[:-2])
    assert calls > 1


def regex(length: int) -> str:
    """Return a grammar whose lexer has other states wherever an output is."""
    rules = {"lark_grammar": rf"start: /(.|\n)*[aeiou](.|\n){{{length}}}/"}
    return json.dumps({"grammars": [rules]})


def go_on(mask: TokenMask, num_tokens: int, output: list[int] | None = None) -> list[int]:
    """Go on with an output at random, never to its end."""
    output, draw = list(output or []), random.Random(1)
    while len(output) < num_tokens:
        output.append(draw.choice([i for i in allowed(mask, output) if i != EOS]))
    return output


async def test_an_output_goes_on_with_states_of_its_own_while_it_gets_further(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its masks fill is given up, its own way followed anew: two states a token, not ten."""
    monkeypatch.setattr("pagoda_worker.grammars.PROGRESS_TOKENS", 64)
    monkeypatch.setattr(grammar, "_LIMITS", LLParserLimits(max_lexer_states=8000))
    text = regex(20)
    mask = await grammars.mask(text)
    assert isinstance(mask, GrammarMask)
    shared = mask._compiled
    output = go_on(mask, 700)
    assert mask._compiled is not shared
    assert shared.limit_met()
    assert mask._renewed_at > 0
    fresh = await grammars.mask(text)
    assert isinstance(fresh, GrammarMask)
    assert fresh._compiled is not shared, "a lexer that is full is nobody's"
    assert fresh._compiled is not mask._compiled
    with pytest.raises(TokenMaskError, match="the grammar: lexer error: too many states: 8000"):
        go_on(mask, 4000, output)


@pytest.mark.parametrize(("seconds", "least"), [(0.0, 64), (0.1, 128), (9.0, math.inf)])
async def test_what_compiles_slowly_is_compiled_again_seldom(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, seconds: float, least: float
) -> None:
    monkeypatch.setattr("pagoda_worker.grammars.PROGRESS_TOKENS", 64)
    monkeypatch.setattr("pagoda_worker.grammars.SLOW_PROGRESS_TOKENS", 128)
    mask = await grammars.mask(regex(5))
    assert isinstance(mask, GrammarMask)
    mask._compiled = replace(mask._compiled, seconds=seconds)
    assert mask._least_progress() == least


async def test_what_lexers_had_is_given_back_now_and_then(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr("pagoda_worker.grammars.give_back_freed", lambda: given.append("all"))
    monkeypatch.setattr(grammars, "_gave_back_at", time.monotonic())
    await grammars.mask(regex(2))
    assert not given
    monkeypatch.setattr(grammars, "_gave_back_at", time.monotonic() - GIVE_BACK_SECONDS - 1)
    await grammars.mask(regex(3))
    await grammars.mask(regex(4))
    assert given == ["all"]


async def test_a_long_output_is_followed_again_from_its_beginning(grammars: Grammars) -> None:
    """After a preemption, or on another worker: work has its limit for one token, not for all."""
    output = go_on(await grammars.mask(regex(1000)), 300)
    grammars._compiler.forget((await grammars.mask(regex(1000)))._compiled)
    assert allowed(await grammars.mask(regex(1000)), output)


async def test_without_a_tokenizer_no_grammar_is_served(tmp_path: Path) -> None:
    grammars = Grammars.load(tmp_path, vocab_size=64, eos_token_ids=[])
    with pytest.raises(GrammarError, match="no tokenizer"):
        await grammars.mask(GRAMMAR)


async def test_looking_ahead_says_what_would_be_allowed_and_goes_no_step(
    grammars: Grammars,
) -> None:
    num_seen = 0
    for seed in range(10):
        whole = walk(await grammars.mask(GRAMMAR), seed)
        mask, draw = await grammars.mask(GRAMMAR), random.Random(seed)
        place = 0
        while place < len(whole):
            proposed = whole[place : place + draw.randint(1, 9)]
            wrong = draw.randrange(len(proposed) + 3)
            if wrong < len(proposed):
                proposed[wrong] = draw.randrange(VOCAB_SIZE)
            masks = mask.ahead(whole[:place], proposed)
            assert len(masks) <= len(proposed) + 1
            fresh = await grammars.mask(GRAMMAR)
            for i, bits in enumerate(masks):
                output = whole[:place] + proposed[:i]
                assert bits.tolist() == fresh.bitmask(output).tolist(), (seed, place, i)
            if len(masks) <= len(proposed):
                rejected = proposed[len(masks) - 1]
                assert rejected not in allowed(fresh, whole[:place] + proposed[: len(masks) - 1])
            num_seen += len(masks) - 1
            assert list(mask.forced(whole[:place])) == list(
                (await grammars.mask(GRAMMAR)).forced(whole[:place])
            )
            place += draw.randint(1, 4)
        assert allowed(mask, whole) == [EOS], "nothing follows the end"
        assert len(mask.ahead(whole[:-1], [EOS, EOS, 5])) >= 2
    assert num_seen > 100


async def test_a_limit_that_is_reached_ahead_does_not_end_the_output(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = await grammars.mask(GRAMMAR)
    whole = walk(await grammars.mask(GRAMMAR), 3)
    assert isinstance(mask, GrammarMask)
    mask.bitmask(whole[:4])
    find, calls = mask._find_forced, iter(range(100))

    def fails_once() -> list[int]:
        if next(calls) == 1:
            raise GrammarError("too complex from here on")
        return find()

    monkeypatch.setattr(mask, "_find_forced", fails_once)
    mask._forced = []
    masks = mask.ahead(whole[:4], whole[4:9])
    assert 1 <= len(masks) < 6
    monkeypatch.undo()
    assert walk(mask, 3, whole[:4]) == whole
    assert len(mask.ahead(whole[:4], whole[4:9])) == 1, "it looks ahead no more"
