"""Prompts: exact counts, shared parts where asked, a function of the seed."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pagoda_cli.bench.errors import PromptError
from pagoda_cli.bench.prompts import SyntheticPrompts
from pagoda_cli.bench.vocabulary import Vocabulary
from pagoda_cli.bench.workload import PlannedRequest

TOKENIZER_FILE = Path(__file__).parents[4] / "demo" / "model" / "tokenizer.json"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer_file(TOKENIZER_FILE)


@pytest.mark.parametrize("num_tokens", [1, 2, 17, 300])
def test_text_has_exactly_the_tokens(vocabulary: Vocabulary, num_tokens: int) -> None:
    maker = SyntheticPrompts(vocabulary, seed=1, num_prefix_tokens=9)
    text = maker.prompt(PlannedRequest(0, num_tokens, 1))
    assert isinstance(text, str)
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == num_tokens + 9


def test_ids_are_the_texts_tokens(vocabulary: Vocabulary) -> None:
    request = PlannedRequest(4, 40, 1)
    text = SyntheticPrompts(vocabulary, seed=1).prompt(request)
    ids = SyntheticPrompts(vocabulary, seed=1, send_ids=True).prompt(request)
    tokenizer = Tokenizer.from_file(str(TOKENIZER_FILE))
    assert tokenizer.encode(str(text), add_special_tokens=False).ids == ids


def test_prefix_is_shared_and_the_rest_is_not(vocabulary: Vocabulary) -> None:
    maker = SyntheticPrompts(vocabulary, seed=1, num_prefix_tokens=32, send_ids=True)
    first, second = (maker.prompt(PlannedRequest(index, 32, 1)) for index in range(2))
    assert first[:32] == second[:32]
    assert first[32:] != second[32:]
    assert maker.warmup_prompt(0, 32)[:16] != first[:16]


def test_seed_decides(vocabulary: Vocabulary) -> None:
    request = PlannedRequest(0, 20, 1)
    first, again, other = (
        SyntheticPrompts(vocabulary, seed=seed).prompt(request) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_equal_hash_ids_are_equal_prefixes(vocabulary: Vocabulary) -> None:
    maker = SyntheticPrompts(vocabulary, seed=0, send_ids=True, block_scale=16 / 512)
    first = maker.prompt(PlannedRequest(0, 40, 1, hash_ids=(0, 1, 2)))
    second = maker.prompt(PlannedRequest(1, 48, 1, hash_ids=(0, 1, 3)))
    assert (len(first), len(second)) == (40, 48)
    assert first[:32] == second[:32]
    assert first[32:40] != second[32:40]


def test_ids_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(PromptError, match="--tokenizer"):
        SyntheticPrompts(Vocabulary.approximate(), seed=0, send_ids=True)


def test_unreadable_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(PromptError, match=r"tokenizer\.json"):
        Vocabulary.from_tokenizer_file(path)
