import pytest
import torch

from pagoda_engine.models.alibi import alibi_slopes


@pytest.mark.parametrize(
    ("num_heads", "bias_max", "exponents"),
    [
        (8, 8.0, [1, 2, 3, 4, 5, 6, 7, 8]),
        (4, 4.0, [1, 2, 3, 4]),
        (1, 8.0, [8]),
        (6, 8.0, [2, 4, 6, 8, 1, 3]),  # of four heads, then between them
    ],
)
def test_slopes_are_powers_of_two(num_heads: int, bias_max: float, exponents: list[int]) -> None:
    expected = torch.tensor([2.0**-exponent for exponent in exponents])
    assert torch.equal(alibi_slopes(num_heads, bias_max), expected)
