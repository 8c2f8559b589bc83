"""Words that must not come, as the tokens that would spell them. Knows a tokenizer."""

from collections.abc import Sequence

from pagoda_gateway.text.tokenizer import ModelTokenizer


def bad_word_tokens(tokenizer: ModelTokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return each word's tokens, at the beginning of a text and after a space.

    The second only where the space changes the word's own tokens: else the first is its end. Other
    tokens may spell a word too, and are not found.
    """
    if not words:
        return []
    plain = [word.lstrip() for word in words]
    at_begin = tokenizer.encode_all(plain, add_special_tokens=False)
    after_space = tokenizer.encode_all([f" {word}" for word in plain], add_special_tokens=False)
    return at_begin + [
        spaced
        for spaced, begin in zip(after_space, at_begin, strict=True)
        if spaced[-len(begin) :] != begin
    ]
