import pytest
import torch

from pagoda_engine.models.rope_scaling import RopeDescription, cos_sin_table

HEAD_DIM = 16


def frequencies(rope: RopeDescription) -> torch.Tensor:
    """Recover the angle of position 1 for every pair of dimensions."""
    table = cos_sin_table(rope, HEAD_DIM, 2) / rope.attention_factor
    return torch.atan2(table[1, HEAD_DIM // 2 :], table[1, : HEAD_DIM // 2])


def test_table_holds_cosines_then_sines() -> None:
    table = cos_sin_table(RopeDescription(), HEAD_DIM, 5)
    assert table.shape == (5, HEAD_DIM)
    assert table.dtype is torch.float32
    assert torch.equal(table[0], torch.tensor([1.0] * 8 + [0.0] * 8))


def test_plain_frequencies_fall_from_one() -> None:
    expected = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.testing.assert_close(frequencies(RopeDescription()), expected)


def test_linear_divides_every_frequency() -> None:
    plain = frequencies(RopeDescription())
    scaled = frequencies(RopeDescription(rope_type="linear", factor=4.0))
    torch.testing.assert_close(scaled, plain / 4)


@pytest.mark.parametrize("rope_type", ["llama3", "yarn"])
def test_long_context_types_keep_fast_dimensions_and_scale_slow_ones(rope_type: str) -> None:
    plain = frequencies(RopeDescription())
    scaled = frequencies(
        RopeDescription(
            rope_type=rope_type, factor=8.0, original_max_position_embeddings=256, beta_fast=16.0
        )
    )
    torch.testing.assert_close(scaled[0], plain[0])
    torch.testing.assert_close(scaled[-1], plain[-1] / 8)
    assert (scaled <= plain + 1e-7).all()


def test_yarn_scales_the_table() -> None:
    rope = RopeDescription(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=256, attention_factor=1.5
    )
    table = cos_sin_table(rope, HEAD_DIM, 3)
    halves = table[:, : HEAD_DIM // 2] ** 2 + table[:, HEAD_DIM // 2 :] ** 2
    torch.testing.assert_close(halves, torch.full_like(halves, 1.5**2))
