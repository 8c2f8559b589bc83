"""Whose text comes out of an output's blocks, whatever the parser holds back or leaves out."""

from pathlib import Path

import pytest
from support.tiny_tokenizer import EOS_ID, write_model_folder

from pagoda.rpc.v1.generate_pb2 import PositionLogprobs, TokenLogprob
from pagoda_gateway.dialects import BlockReader
from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.grammar import Tool
from pagoda_gateway.openai.logprobs import LogprobFormat
from pagoda_gateway.responses.block_logprobs import BlockLogprobs
from pagoda_gateway.sequences.output.sequence import Delta
from pagoda_gateway.text.tokenizer import ModelTokenizer

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder: Path = write_model_folder(tmp_path_factory.mktemp("model") / "tiny")
    return ModelTokenizer.load(folder)


def read(
    tokenizer: ModelTokenizer, text: str, *, template: str, at_once: bool, ends: bool = True
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return kind and text of the blocks that an output makes, and the text of each's entries."""
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer((), skip_special_tokens=True)
    texts = [detokenizer.push(token_id) for token_id in token_ids]
    texts[-1] += detokenizer.flush()
    if ends:
        token_ids, texts = [*token_ids, EOS_ID], [*texts, ""]
    chosen = [PositionLogprobs(chosen=TokenLogprob(token_id=i, logprob=-1)) for i in token_ids]
    deltas = [
        Delta(text=text, token_ids=[token_id], logprobs=[position])
        for token_id, text, position in zip(token_ids, texts, chosen, strict=True)
    ]
    if at_once:
        deltas = [Delta(text="".join(texts), token_ids=token_ids, logprobs=chosen)]
    output = BlockReader(Dialect.of(template).parser([Tool("weather")]), lambda: "call_1")
    reader = BlockLogprobs(
        output,
        tokenizer.detokenizer((), skip_special_tokens=True),
        LogprobFormat(tokenizer, tokens_as_ids=False),
        0,
    )
    entries: dict[int, bytes] = {}
    for delta in deltas:
        for changes in reader.read(delta, is_last=delta is deltas[-1]):
            for logged in changes:
                spelt = b"".join(bytes(entry["bytes"]) for entry in logged.entries)
                index = logged.change.block.index
                entries[index] = entries.get(index, b"") + spelt
    blocks = [(block.kind, block.text) for block in output.blocks]
    return blocks, [entries[block.index].decode(errors="replace") for block in output.blocks]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "text", ["hello world", "a < b <", "\n hello", "h\u00e9 \U0001f600!", "<tool"]
)
def test_entries_spell_the_text(tokenizer: ModelTokenizer, text: str, at_once: bool) -> None:
    blocks, spelt = read(tokenizer, text, template="<tool_call>", at_once=at_once)
    assert blocks == [("text", text)]
    assert spelt == [text]


@pytest.mark.parametrize("at_once", [True, False])
def test_thoughts_calls_and_marks_have_none(tokenizer: ModelTokenizer, at_once: bool) -> None:
    text = f"<think>\nhis t\n</think>\n\nthis\n{CALL}\n"
    blocks, spelt = read(tokenizer, text, template="<tool_call></think>", at_once=at_once)
    assert [kind for kind, _ in blocks] == ["reasoning", "text", "call"]
    assert blocks[1][1].startswith("this")
    assert spelt == ["", blocks[1][1], ""]


def test_messages_of_harmony_that_become_one_text(tokenizer: ModelTokenizer) -> None:
    final = "<|start|>assistant<|channel|>final<|message|>"
    text = f"<|channel|>analysis<|message|>hm<|return|>{final}yes<|return|>{final}no"
    blocks, spelt = read(tokenizer, text, template="<|channel|>", at_once=False)
    assert blocks == [("reasoning", "hm"), ("text", "yes\n\nno")]
    assert spelt == ["", "yesno"]


def test_a_character_that_never_ends_has_its_bytes(tokenizer: ModelTokenizer) -> None:
    whole = tokenizer.encode("\U0001f600", add_special_tokens=False)
    position = [PositionLogprobs(chosen=TokenLogprob(token_id=i)) for i in whole[:2]]
    output = BlockReader(Dialect.of("").parser([]), lambda: "")
    reader = BlockLogprobs(
        output,
        tokenizer.detokenizer((), skip_special_tokens=True),
        LogprobFormat(tokenizer, tokens_as_ids=False),
        0,
    )
    delta = Delta(text="\ufffd", token_ids=whole[:2], logprobs=position)
    logged = [change for changes in reader.read(delta, is_last=True) for change in changes]
    assert [len(change.entries) for change in logged] == [0, 2, 0]
