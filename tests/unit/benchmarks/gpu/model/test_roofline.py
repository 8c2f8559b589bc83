import pytest
import torch
from gpu.harness.ceilings import Ceilings
from gpu.model.roofline import Roofline, StepShape
from gpu.model.shapes import SHAPES

CEILINGS = Ceilings(4e12, 8e14, 0.0)
BF16 = torch.bfloat16


def roofline(name):
    return Roofline(SHAPES[name], BF16)


def decode(batch, context):
    return StepShape.decode(batch, context)


def test_floor_of_an_8b_decode_is_its_weights_and_its_kv():
    # 8.03e9 parameters less the embedding, of which one row is read; 128 KiB of KV a token.
    weights = (8_030_261_248 - 128256 * 4096 + 4096) * 2
    assert roofline("llama-3.1-8b").floor_bytes(decode(1, 1024)) == weights + 1024 * 131072


def test_floor_grows_by_the_kv_of_each_sequence():
    model = roofline("llama-3.1-8b")
    more = model.floor_bytes(decode(64, 8192)) - model.floor_bytes(decode(1, 8192))
    assert more == 63 * 8192 * 131072 + 63 * 4096 * 2


def test_decode_is_bound_by_bytes_and_prefill_by_products():
    model = roofline("llama-3.1-8b")
    step = decode(1, 1024)
    assert model.floor_seconds(step, CEILINGS) == model.floor_bytes(step) / 4e12
    prompt = StepShape((8192,), (8192,))
    assert model.floor_seconds(prompt, CEILINGS) == model.floor_flops(prompt) / 8e14


def test_products_of_a_prompt_are_two_for_each_weight_and_four_for_each_pair():
    products = 2 * 8192 * (8_030_261_248 - 2 * 128256 * 4096 - 65 * 4096)
    logits = 2 * 128256 * 4096  # of the last token alone
    attention = 4 * 32 * 4096 * (8192 * 8193 // 2)
    flops = roofline("llama-3.1-8b").floor_flops(StepShape((8192,), (8192,)))
    assert flops == products + logits + attention


@pytest.mark.parametrize(("new", "context"), [(1, 7), (5, 5), (3, 9)])
def test_pairs_are_those_under_the_causal_mask(new, context):
    pairs = sum(k <= q for q in range(context - new, context) for k in range(context))
    assert StepShape((new,), (context,)).num_pairs == pairs


def test_chunks_do_the_products_of_the_whole_prompt():
    model = roofline("qwen3-8b")
    whole = model.floor_flops(StepShape((96,), (96,)))
    chunks = [StepShape((32,), (end,)) for end in (32, 64, 96)]
    logits = 2 * 151936 * 4096
    assert sum(map(model.floor_flops, chunks)) == whole + 2 * logits


@pytest.mark.parametrize(("tokens", "touched"), [(1, 8), (2, 15.5), (10_000, 128)])
def test_touched_experts_are_the_expected_ones(tokens, touched):
    assert roofline("qwen3-30b-a3b").touched_experts(tokens) == pytest.approx(touched)


def test_a_decode_of_a_mixture_reads_the_touched_experts_alone():
    model = roofline("qwen3-30b-a3b")
    one_expert = 3 * 2048 * 768 * 2
    fewer = model.floor_bytes(decode(10_000, 1)) - 10_000 * model.shape.kv_bytes_per_token(BF16)
    alone = model.floor_bytes(decode(1, 1)) - model.shape.kv_bytes_per_token(BF16)
    rows = 9_999 * 2048 * 2  # of the embedding
    assert fewer - alone - rows == pytest.approx(48 * 120 * one_expert)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b-8-layers"])
@pytest.mark.parametrize("step", [decode(1, 1024), decode(64, 8192), StepShape((8192,), (8192,))])
def test_the_prediction_is_never_below_the_floor(name, step):
    model = roofline(name)
    floor = model.floor_seconds(step, CEILINGS)
    assert floor <= model.predicted_seconds(step, CEILINGS) < 1.5 * floor
