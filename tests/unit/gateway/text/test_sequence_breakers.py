"""Breakers of DRY's repetitions, as the tokens that hold them."""

from collections.abc import Sequence

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text import sequence_breakers
from pagoda_gateway.text.sequence_breakers import SequenceBreakers
from pagoda_gateway.text.tokenizer import ModelTokenizer


def held(tokenizer: ModelTokenizer, *breakers: str, vocab_size: int = 10_000) -> Sequence[int]:
    return SequenceBreakers(tokenizer).token_ids(breakers, vocab_size)


@pytest.mark.parametrize("breaker", ["l", "ll", "o", "he", "<|", "\n", "\u00e9", "lo w", "xyz"])
def test_they_are_all_tokens_whose_text_holds_it(tokenizer: ModelTokenizer, breaker: str) -> None:
    texts = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    holding = [i for i, text in enumerate(texts) if breaker.encode() in text]
    last = tokenizer.encode("a" + breaker, add_special_tokens=False)[-1:]
    assert list(held(tokenizer, breaker)) == (holding or last)


def test_each_token_comes_once_and_those_beyond_the_model_do_not(tokenizer: ModelTokenizer) -> None:
    both = held(tokenizer, "he", "ll")
    assert list(both) == sorted({*held(tokenizer, "he"), *held(tokenizer, "ll")})
    assert list(held(tokenizer, "he", "ll", vocab_size=both[-1])) == list(both[:-1])


def test_too_many_are_refused(tokenizer: ModelTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(held(tokenizer, "ll")) == 3
    monkeypatch.setattr(sequence_breakers, "MAX_BREAKER_TOKENS", 2)
    with pytest.raises(InvalidRequestError, match=r"more than 2 tokens .* up to 'll'") as caught:
        held(tokenizer, "ll")
    assert caught.value.param == "dry_sequence_breakers"
