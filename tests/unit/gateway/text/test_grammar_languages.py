"""Lark or GBNF: which one a grammar is in shows in how it defines its rules, not in their names."""

import time

import pytest
from support.grammar_walk import GrammarWalker
from support.tiny_tokenizer import EOS_ID, byte_level_tokenizer

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text import grammars
from pagoda_gateway.text.grammars import grammar_rules, whole_grammar
from pagoda_runtime.grammar import GrammarCompiler

TOKENIZER = byte_level_tokenizer().to_str()
OUTPUTS = ("a", "b", "ab", "start", "startb")


@pytest.mark.parametrize(
    ("grammar", "allowed"),
    [
        ('start: "a" | "b"', ["a", "b"]),
        ('?start: "a" | value\n?value: "b"', ["a", "b"]),
        ('!start: "a"', ["a"]),
        ('// first\n  start : "a" "b"', ["ab"]),
        ('%llguidance {}\nstart: "a"', ["a"]),
        ('root ::= "a" | "b"', ["a", "b"]),
        ('root ::= start\nstart ::= "a" | "b"', ["a", "b"]),
        ('start ::= "a"\nroot ::= start end\nend ::= "b"', ["ab"]),
        ('# start\nroot ::= start start-rule\nstart ::= "start"\nstart-rule ::= [start]? "b"',
         ["startb"]),
        ('root ::= Start | startRule\nStart ::= "a"\nstartRule ::= renamed0\nrenamed0 ::= "b"',
         ["a", "b"]),
        ('start[capture]: "a"', ["a"]),
        ('root ::= re-start | start_2\nre-start ::= "a"\nstart_2 ::= "start"', ["a", "start"]),
    ],
)  # fmt: skip
async def test_a_grammar_allows_what_it_says(grammar: str, allowed: list[str]) -> None:
    compiler = GrammarCompiler(TOKENIZER, eos_token_ids=[EOS_ID])
    walker = GrammarWalker(TOKENIZER, eos_token_id=EOS_ID)
    compiled = compiler.compile(whole_grammar(await grammar_rules(grammar)))
    assert [text for text in OUTPUTS if walker.allows(compiled.matcher(), text)] == allowed


@pytest.mark.parametrize("unclosed", ["[", '["', '"\\', "\\[", '"[\\'])
def test_what_nothing_closes_takes_no_longer_than_it_is_long(unclosed: str) -> None:
    seconds = []
    for size in (1 << 14, 1 << 18):
        text = 'root ::= "a"\n' + unclosed * (size // len(unclosed))
        started = time.process_time()
        grammars._without_start(text)
        seconds.append(time.process_time() - started)
    assert seconds[1] < 64 * max(seconds[0], 1e-3)  # 16 times as long; squared it would be 256


@pytest.mark.parametrize("grammar", ['begin: "a"', "start", 'starter ::= "a"', ""])
async def test_what_is_in_no_language_is_said(grammar: str) -> None:
    with pytest.raises(InvalidRequestError, match="neither Lark nor GBNF"):
        await grammar_rules(grammar)
