import dataclasses

import pytest
import torch

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models.weights.num_bytes import weight_bytes
from pagoda_kernels import plan_attention

CPU = torch.device("cpu")


def make(name, dtype=torch.float32, seed=0, num_layers=2):
    from gpu.model.random_model import random_model
    from gpu.model.shapes import SHAPES

    shape = SHAPES[name]
    experts = shape.experts
    if experts is not None:
        experts = dataclasses.replace(experts, layers=frozenset(range(1, num_layers)))
    shape = dataclasses.replace(
        shape, num_layers=num_layers, sliding_windows=(None,) * num_layers, experts=experts
    )
    return random_model(shape, dtype=dtype, device=CPU, seed=seed, max_positions=512)


def forward(model):
    shape = model.description
    layout = shape.kv_layout(16, model.dtype)
    plan = plan_attention(
        seqlens_q=[100], context_lens=[100], block_tables=[range(7)], block_size=16, device=CPU
    )
    kv_cache = KvCache(layout, 7, CPU)
    tokens = torch.arange(100)
    with torch.inference_mode():
        return model.decoder.forward(tokens, tokens, plan, kv_cache, None), kv_cache.tensor


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_activations_stay_finite_through_many_layers(name, dtype):
    logits, kv = forward(make(name, dtype, num_layers=80))
    assert kv.isfinite().all()
    assert 0.3 < logits.float().std() < 3


def test_seed_decides_the_weights():
    first, again, other = (forward(make("tiny", seed=seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_longest_sequence_is_the_shapes_at_most():
    assert make("tiny").decoder.max_positions == 512


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_shapes_have_as_many_parameters_as_published(name, num_parameters):
    from gpu.model.shapes import SHAPES

    assert weight_bytes(SHAPES[name], torch.bfloat16) == 2 * num_parameters


def test_fewer_layers_of_a_mixture_keep_their_experts():
    from gpu.model.shapes import SHAPES, with_layers

    shape = with_layers(SHAPES["qwen3-30b-a3b"], 3)
    assert shape.num_layers == len(shape.sliding_windows) == 3
    assert shape.experts.layers == {0, 1, 2}
