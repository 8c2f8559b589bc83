"""Words that are one token each wherever they stand: what prompts of exact length are built from.

Found with a local tokenizer file or the server's `/tokenize`; without either, lengths are guesses.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from pagoda_cli.bench.errors import PromptError
from pagoda_cli.endpoint import Endpoint

MIN_WORDS = 8
MAX_WORDS = 4096
_TOKENIZE_TIMEOUT = aiohttp.ClientTimeout(total=30)
# Asked of a server's /tokenize; most vocabularies hold most of them as one token.
_COMMON_WORDS = tuple(
    re.findall(
        r"\w+",
        """
        the of and to in is that it was for on are as with his they at be this from have or by one
        had not but what all were when we there can an your which their said if do will each about
        how up out them then she many some so these would other into has more her two like him see
        time could no make than first been its who now people my made over did down only way find
        use may water long little very after words called just where most know get through back
        much before go good new write our used me man too any day same right look think also around
        another came come work three word must because does part even place well such here take why
        """,
    )
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words to build prompts from; `token_ids` is empty where only text can be sent."""

    words: tuple[str, ...]
    token_ids: tuple[int, ...]
    count_tokens: Callable[[str], int] | None
    is_exact: bool

    @classmethod
    def from_tokenizer_file(cls, path: Path) -> "Vocabulary":
        """Read a `tokenizer.json`.

        Raises:
            PromptError: no tokenizers package, an unreadable file or too few usable words.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise PromptError("--tokenizer needs: pip install tokenizers") from error
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise PromptError(f"cannot read the tokenizer {path}: {error}") from error

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)

        words, token_ids = [], []
        for token_id in range(tokenizer.get_vocab_size()):
            word = tokenizer.decode([token_id])
            if not (word[:1] == " " and word[1:].isalpha() and word.isascii() and len(word) > 2):
                continue
            # Alone and after itself: some tokenizers treat the first word of a text differently.
            if encode(word) == [token_id] and encode(word * 2) == [token_id] * 2:
                words.append(word)
                token_ids.append(token_id)
            if len(words) == MAX_WORDS:
                break
        if len(words) < MIN_WORDS:
            raise PromptError(
                f"only {len(words)} words of {path} are one token each, {MIN_WORDS} are needed"
            )
        return cls(tuple(words), tuple(token_ids), lambda text: len(encode(text)), is_exact=True)

    @classmethod
    async def from_server(
        cls, session: aiohttp.ClientSession, endpoint: Endpoint
    ) -> "Vocabulary | None":
        """Ask the server's `/tokenize`; None where it has none."""
        found = await _single_tokens(session, endpoint, [f" {word}" for word in _COMMON_WORDS])
        if found is None or len(found) < MIN_WORDS:
            return None
        words, token_ids = tuple(found), tuple(found.values())
        sample = random.Random(0).choices(range(len(words)), k=256)
        is_exact = await _tokenize(session, endpoint, "".join(words[i] for i in sample)) == [
            token_ids[i] for i in sample
        ]
        return cls(words, token_ids, None, is_exact)

    @classmethod
    def approximate(cls) -> "Vocabulary":
        """Common English words, about one token each: lengths are then what the server counts."""
        return cls(tuple(f" {word}" for word in _COMMON_WORDS), (), None, is_exact=False)


async def _single_tokens(
    session: aiohttp.ClientSession, endpoint: Endpoint, words: Sequence[str]
) -> dict[str, int] | None:
    """Return those of `words` that are one token, with it; None where the server does not say.

    Many words are asked at once: as many tokens as words means that each is one.
    """
    ids = await _tokenize(session, endpoint, "".join(words))
    if ids is None:
        return None
    if len(ids) == len(words):
        return dict(zip(words, ids, strict=True))
    if len(words) == 1:
        return {}
    middle = len(words) // 2
    first = await _single_tokens(session, endpoint, words[:middle])
    second = await _single_tokens(session, endpoint, words[middle:])
    return None if first is None or second is None else {**first, **second}


async def _tokenize(
    session: aiohttp.ClientSession, endpoint: Endpoint, text: str
) -> list[int] | None:
    body = {"prompt": text, "add_special_tokens": False, "model": endpoint.model}
    try:
        async with session.post(
            f"{endpoint.root_url}/tokenize",
            data=orjson.dumps(body),
            headers=endpoint.headers,
            timeout=_TOKENIZE_TIMEOUT,
        ) as response:
            if response.status != 200:
                return None
            answer = orjson.loads(await response.read())
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    return [int(token) for token in tokens] if isinstance(tokens, list) else None
