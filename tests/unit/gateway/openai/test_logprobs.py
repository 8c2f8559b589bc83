"""Log probabilities in OpenAI's two shapes."""

import math

import orjson
import pytest
from support.tiny_tokenizer import sentencepiece_tokenizer

from pagoda.rpc.v1.generate_pb2 import PositionLogprobs, TokenLogprob
from pagoda_gateway.openai.logprobs import LEAST, LogprobFormat
from pagoda_gateway.text.tokenizer import ModelTokenizer


def position(token_id: int, logprob: float, *tops: tuple[int, float]) -> PositionLogprobs:
    return PositionLogprobs(
        chosen=TokenLogprob(token_id=token_id, logprob=logprob),
        top=[TokenLogprob(token_id=i, logprob=value) for i, value in tops],
    )


def completion_format(
    tokenizer: ModelTokenizer, *, offset: int, tokens_as_ids: bool = False
) -> LogprobFormat:
    return LogprobFormat(
        tokenizer,
        tokens_as_ids=tokens_as_ids,
        offset=offset,
        new_detokenizer=lambda: tokenizer.detokenizer([], skip_special_tokens=True),
    )


def test_chat_shape(tokenizer: ModelTokenizer) -> None:
    made = LogprobFormat(tokenizer, tokens_as_ids=False).chat(
        [position(69, -1, (69, -1), (70, -2))], 1
    )
    assert made == {
        "content": [
            {"token": "a", "logprob": -1.0, "bytes": [97],
             "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}]}
        ],
        "refusal": None,
    }  # fmt: skip


def test_completion_shape_adds_the_chosen_token(tokenizer: ModelTokenizer) -> None:
    shape = completion_format(tokenizer, offset=3)
    first = shape.completion([position(69, -3, (70, -1)), position(70, -1, (70, -1))], 1)
    assert first["tokens"] == ["a", "b"]
    assert first["top_logprobs"] == [{"b": -1.0, "a": -3.0}, {"b": -1.0}]
    assert first["text_offset"] == [3, 4]
    assert shape.completion([position(69, -1)], 0)["text_offset"] == [5]


def test_echoed_prompt_ends_where_the_output_begins(tokenizer: ModelTokenizer) -> None:
    shape = completion_format(tokenizer, offset=2)
    bos = tokenizer.token_text(0)
    found = shape.echoed([0, 69, 70], [position(69, -3, (70, -1)), position(70, -1)], 1)
    assert found == {
        "tokens": [bos, "a", "b"],
        "token_logprobs": [None, -3.0, -1.0],
        "top_logprobs": [None, {"b": -1.0, "a": -3.0}, {"b": -1.0}],
        "text_offset": [0, 0, 1],
    }
    assert len(bos) > 1
    assert shape.completion([position(69, -1)], 0)["text_offset"] == [2]


@pytest.mark.parametrize("tokens_as_ids", [False, True])
def test_offsets_are_those_of_the_text(tokenizer: ModelTokenizer, tokens_as_ids: bool) -> None:
    """Of half a character, and of what is not shown, a name is longer than the text."""
    text = "aé b"
    prompt = [0, *tokenizer.encode(text, add_special_tokens=False)]
    assert [tokenizer.token_bytes(i) for i in prompt[1:4]] == [b"a", b"\xc3", b"\xa9"]
    shape = completion_format(tokenizer, offset=len(text), tokens_as_ids=tokens_as_ids)
    echoed = shape.echoed(prompt, [position(i, -1) for i in prompt[1:]], 0)
    assert echoed["text_offset"][:5] == [0, 0, 1, 1, 2]
    output = [position(i, -1) for i in [1, *prompt[1:4], 69]]  # the end of a text is not shown
    assert shape.completion(output, 0)["text_offset"] == [4, 4, 5, 5, 6]


def test_what_nobody_has_ended_is_no_part_of_the_next_token(tokenizer: ModelTokenizer) -> None:
    lead, second = (
        next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == byte)
        for byte in (b"\xe2", b"\x82")
    )
    tokens = [69, lead, second, 69, 70]
    shape = completion_format(tokenizer, offset=4)
    assert shape.echoed(tokens, [position(i, -1) for i in tokens[1:]], 0)["text_offset"] == [
        0, 1, 1, 2, 3,
    ]  # fmt: skip
    assert shape.completion([position(i, -1) for i in tokens[1:]], 0)["text_offset"] == [4, 4, 5, 6]
    leads = [69, lead, lead, lead, second, 70]  # each a character of its own, but for the last
    shape = completion_format(tokenizer, offset=5)
    assert shape.echoed(leads, [position(i, -1) for i in leads[1:]], 0)["text_offset"] == [
        0, 1, 2, 3, 3, 4,
    ]  # fmt: skip


def test_the_first_token_begins_the_text() -> None:
    """SentencePiece's decoder leaves the space out that the text begins with."""
    tokenizer = ModelTokenizer(sentencepiece_tokenizer(), {})
    tokens = [*tokenizer.encode("lo", add_special_tokens=False)]
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "lo"
    assert len(tokens) == 3  # the first is a space
    shape = completion_format(tokenizer, offset=len(" lo"))  # what was sent
    echoed = shape.echoed(tokens, [position(i, -1) for i in tokens[1:]], 0)
    assert echoed["text_offset"] == [0, 1, 2]


def test_prompt_logprobs_are_by_token_id(tokenizer: ModelTokenizer) -> None:
    scored = position(69, -3, (70, -1), (71, -2))
    scored.rank = 40
    assert LogprobFormat(tokenizer, tokens_as_ids=True).prompt([scored], 1) == [
        None,
        {
            "69": {"logprob": -3.0, "rank": 40, "decoded_token": "a"},
            "70": {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
        },
    ]


def test_no_infinity_and_no_nan(tokenizer: ModelTokenizer) -> None:
    made = LogprobFormat(tokenizer, tokens_as_ids=False).chat(
        [position(69, -math.inf, (70, math.nan))], 5
    )
    entry = orjson.loads(orjson.dumps(made))["content"][0]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (LEAST, LEAST)


def test_tokens_as_ids(tokenizer: ModelTokenizer) -> None:
    made = LogprobFormat(tokenizer, tokens_as_ids=True).chat([position(42, -1)], 0)
    assert made["content"][0]["token"] == "token_id:42"
