import random

from support.seeds import seed_of_tests

from pagoda_engine.models.description import LatentDescription
from pagoda_engine.models.latent_attention import MIN_EXPANDED, expands, heads_at_once

DEEPSEEK_V3 = LatentDescription(1536, 512, nope_dim=128, rope_dim=64, value_dim=128, norm_eps=1e-6)


def test_prompts_are_expanded_and_decodes_are_absorbed() -> None:
    assert not expands(DEEPSEEK_V3, 1, 100_000)
    assert not expands(DEEPSEEK_V3, MIN_EXPANDED - 1, MIN_EXPANDED - 1)
    assert expands(DEEPSEEK_V3, MIN_EXPANDED, MIN_EXPANDED)
    assert expands(DEEPSEEK_V3, 2048, 100_000)


def test_with_a_long_context_the_border_is_where_the_arithmetic_is_equal() -> None:
    """Each key costs 512 * 256 to expand and saves 1088 - 320 for each query: 171 of them."""
    assert not expands(DEEPSEEK_V3, 160, 100_000)
    assert expands(DEEPSEEK_V3, 180, 100_000)


def test_widths_that_the_kernel_has_not_are_absorbed() -> None:
    wide_value = LatentDescription(0, 512, nope_dim=64, rope_dim=32, value_dim=128, norm_eps=1e-6)
    assert not expands(wide_value, 4096, 4096)


def test_k_and_v_of_some_heads_take_no_more_than_absorbing_takes() -> None:
    generator = random.Random(seed_of_tests())
    shape, num_heads = DEEPSEEK_V3, 128
    for _ in range(200):
        num_new = generator.randint(MIN_EXPANDED, 8192)
        num_keys = num_new + generator.randint(0, 160_000)
        count = heads_at_once(shape, num_heads, num_new, num_keys)
        assert num_heads % count == 0
        taken = count * num_keys * (2 * shape.nope_dim + shape.rope_dim + shape.value_dim)
        room = num_heads * num_new * (2 * shape.kv_rank + shape.width)
        assert taken <= room or count == 1
        if count < num_heads:
            assert 2 * taken > room
