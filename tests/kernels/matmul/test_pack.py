"""Checkpoint layouts mean what their own formulas say, whatever layout they are turned into."""

import pytest
import torch

from pagoda_kernels.matmul import pack as quant_pack
from pagoda_kernels.matmul import reference
from pagoda_kernels.matmul.quant_matmul import quant_matmul

NUM_K, NUM_N, GROUP = 256, 24, 64


def packed_int32(*shape):
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64).int()


@pytest.fixture
def scales():
    return (torch.rand(NUM_K // GROUP, NUM_N) + 0.5).half()


def test_awq_means_what_its_nibbles_say(scales):
    qweight, qzeros = packed_int32(NUM_K, NUM_N // 8), packed_int32(NUM_K // GROUP, NUM_N // 8)
    want = reference.unpack_awq(qweight, qzeros, scales, GROUP).T
    assert torch.equal(quant_pack.pack_awq(qweight, qzeros, scales).dequantised(), want)


@pytest.mark.parametrize("order", ["none", "plain", "desc_act"])
def test_gptq_means_what_its_nibbles_say(scales, order):
    qweight, qzeros = packed_int32(NUM_K // 8, NUM_N), packed_int32(NUM_K // GROUP, NUM_N // 8)
    groups = torch.arange(NUM_K) // GROUP
    g_idx = groups[torch.randperm(NUM_K)] if order == "desc_act" else groups
    want = reference.unpack_gptq(qweight, qzeros, scales, g_idx).T
    given = None if order == "none" else g_idx.int()
    weight = quant_pack.pack_gptq(qweight, qzeros, scales, given)
    assert (weight.order is not None) == (order == "desc_act")
    assert torch.equal(weight.dequantised(), want)


def test_act_order_is_undone_by_the_matmul(scales, assert_close):
    qweight, qzeros = packed_int32(NUM_K // 8, NUM_N), packed_int32(NUM_K // GROUP, NUM_N // 8)
    g_idx = (torch.arange(NUM_K) // GROUP)[torch.randperm(NUM_K)]
    weight = quant_pack.pack_gptq(qweight, qzeros, scales, g_idx)
    x = torch.randn(5, NUM_K)
    want = x @ reference.unpack_gptq(qweight, qzeros, scales, g_idx)
    assert_close(quant_matmul(x, weight), want)


def test_gptq_v2_stores_zeros_as_they_are(scales):
    qweight, qzeros = packed_int32(NUM_K // 8, NUM_N), packed_int32(NUM_K // GROUP, NUM_N // 8)
    first = quant_pack.pack_gptq(qweight, qzeros, scales)
    second = quant_pack.pack_gptq(qweight, qzeros, scales, zero_offset=0)
    assert torch.equal(first.zeros, second.zeros + 1)


def test_one_scale_per_channel_is_repeated():
    weight = quant_pack.pack_int4(
        torch.randint(0, 16, (8, 512)), torch.full((1, 8), 2.0), torch.full((1, 8), 8.0)
    )
    assert weight.group_size == 128
    assert weight.shape == (8, 512)


@pytest.mark.parametrize(
    ("quantise", "error"),
    [
        (quant_pack.quantise_int8, 0.01),
        (quant_pack.quantise_int4, 0.12),
        (lambda w: quant_pack.quantise_fp8_weight(w, "tensor"), 0.04),
        (lambda w: quant_pack.quantise_fp8_weight(w, "channel"), 0.04),
        (lambda w: quant_pack.quantise_fp8_weight(w, "block"), 0.04),
    ],
)
def test_quantised_weights_are_near(quantise, error):
    wide = torch.randn(130, 256)
    got = quantise(wide).dequantised()
    assert got.shape == wide.shape
    assert ((got - wide).norm() / wide.norm()).item() < error


def test_says_what_does_not_fit(scales):
    with pytest.raises(ValueError, match=r"scales: expected \[K / group_size, 24\]"):
        quant_pack.pack_awq(packed_int32(NUM_K, 3), packed_int32(2, 3), scales[:, :8])
    with pytest.raises(ValueError, match=r"zeros: expected shape \[4, 24\], got \[2, 24\]"):
        quant_pack.pack_awq(packed_int32(NUM_K, 3), packed_int32(2, 3), scales)
    with pytest.raises(ValueError, match="g_idx: expected groups of 64, got others"):
        quant_pack.pack_gptq(
            packed_int32(NUM_K // 8, NUM_N), packed_int32(4, 3), scales, torch.zeros(NUM_K).int()
        )
