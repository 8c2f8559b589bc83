"""Text comes out whole: never half a character, the same as decoding everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_tokenizer import byte_level_tokenizer, sentencepiece_tokenizer

from pagoda_gateway.text.tokenizer import ModelTokenizer

BYTE_LEVEL = ModelTokenizer(byte_level_tokenizer(), {})
SENTENCEPIECE = ModelTokenizer(sentencepiece_tokenizer(), {})
TEXT = st.text(
    st.sampled_from("hello wörld! \U0001f600\U0001f469\u200d\U0001f680日本\n"), max_size=30
)


def stream(tokenizer: ModelTokenizer, ids: list[int], context: list[int] | None = None) -> str:
    detokenizer = tokenizer.detokenizer(context or [], skip_special_tokens=True)
    return "".join(detokenizer.push(i) for i in ids) + detokenizer.flush()


@given(TEXT)
def test_byte_level_stream_spells_the_text(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    assert stream(BYTE_LEVEL, ids) == text


@given(st.lists(st.integers(0, 266), max_size=30))
def test_byte_level_stream_equals_decoding_any_tokens(ids: list[int]) -> None:
    assert stream(BYTE_LEVEL, ids) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


@given(TEXT)
def test_no_piece_ends_inside_a_character(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    detokenizer = BYTE_LEVEL.detokenizer([], skip_special_tokens=True)
    shown = ""
    for token_id in ids:
        shown += detokenizer.push(token_id)
        assert text.startswith(shown)


@given(TEXT.filter(lambda text: not text.startswith(" ")))
def test_sentencepiece_stream_equals_decoding_at_once(text: str) -> None:
    ids = SENTENCEPIECE.encode(text, add_special_tokens=False)
    assert stream(SENTENCEPIECE, ids) == SENTENCEPIECE.decode(ids, skip_special_tokens=True)


@given(st.lists(st.integers(2, 272), max_size=30))
def test_byte_fallback_stream_is_the_text_of_all_bytes(ids: list[int]) -> None:
    spelled = b"".join(map(SENTENCEPIECE.token_bytes, ids)).decode(errors="replace")
    prompt = SENTENCEPIECE.encode("hello", add_special_tokens=False)
    assert stream(SENTENCEPIECE, ids, prompt) == spelled


@pytest.mark.parametrize("num_ids", range(9))
def test_one_unfinished_character_is_one_replacement(num_ids: int) -> None:
    ids = SENTENCEPIECE.encode("a\U0001f600\U0001f389", add_special_tokens=False)[1:]
    wanted = b"".join(map(SENTENCEPIECE.token_bytes, ids[:num_ids])).decode(errors="replace")
    assert stream(SENTENCEPIECE, ids[:num_ids]) == wanted
    assert wanted.count("\ufffd") == (0 if num_ids in (0, 1, 5, 9) else 1)


def test_special_tokens_that_are_left_out_end_no_character() -> None:
    ids = SENTENCEPIECE.encode("\U0001f600", add_special_tokens=False)[-4:]
    assert stream(SENTENCEPIECE, [*ids[:2], 1, *ids[2:]]) == "\U0001f600"


def test_sentencepiece_keeps_the_space_after_a_prompt() -> None:
    prompt = SENTENCEPIECE.encode("hello", add_special_tokens=False)
    whole = SENTENCEPIECE.encode("hello world", add_special_tokens=False)
    assert stream(SENTENCEPIECE, whole[len(prompt) :], prompt) == " world"


def test_special_tokens_have_no_text_unless_asked_for() -> None:
    shown = BYTE_LEVEL.detokenizer([], skip_special_tokens=False)
    assert stream(BYTE_LEVEL, [1]) == ""
    assert shown.push(1) == "<|end|>"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE])
def test_unfinished_character_becomes_a_replacement(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("a\U0001f600", add_special_tokens=False)
    assert stream(tokenizer, ids[:-1]).rstrip("\ufffd").strip() == "a"
    assert stream(tokenizer, ids[:-1]).endswith("\ufffd")


def test_tokens_beyond_the_vocabulary_have_no_text() -> None:
    assert stream(BYTE_LEVEL, [100_000]) == ""
