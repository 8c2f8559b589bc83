import pytest
import torch

from pagoda_engine.sampling.likeliest_tokens import likeliest_tokens, lowest_of_last_equals


def in_order(row: torch.Tensor) -> list[int]:
    values = row.tolist()
    return sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))


def with_equals(seed: int, rows: int, vocab_size: int) -> torch.Tensor:
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2
    logits = logits.bfloat16().float()
    logits[0] = 3.0
    logits[1, 1:] = float("-inf")
    logits[2, ::2] = logits[2].max()
    logits[3, : vocab_size // 2] = -0.0
    return logits


@pytest.mark.parametrize("vocab_size", [5, 64, 3000])
@pytest.mark.parametrize("num", [0, 1, 2, 5, 20])
def test_of_equals_the_lowest_id_comes_first(vocab_size: int, num: int) -> None:
    num = min(num, vocab_size)
    logits = with_equals(seed=num, rows=12, vocab_size=vocab_size)
    wanted = [in_order(row)[:num] for row in logits]
    assert likeliest_tokens(logits, num).tolist() == wanted
    if num:  # what a GPU does, which cannot be asked whether there was a choice
        values, token_ids = logits.topk(num, dim=-1)
        lowest = lowest_of_last_equals(logits, values, token_ids)
        assert [sorted(row) for row in lowest.tolist()] == [sorted(row) for row in wanted]


def test_rows_that_are_no_distribution_do_no_harm() -> None:
    logits = torch.full((3, 40), float("nan"))
    logits[1, :30] = 1.0
    values, token_ids = logits.topk(20, dim=-1)
    for found in (likeliest_tokens(logits, 20), lowest_of_last_equals(logits, values, token_ids)):
        assert found.shape == (3, 20)
        assert found.min() >= 0
        assert found.max() < 40
