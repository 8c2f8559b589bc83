import gguf
import numpy as np
import pytest
import torch
from support.seeds import seed_of_tests

from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS
from pagoda_kernels.native.quantised_weight import quantise, quantise_by_torch


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # scales of any bits may be infinite
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_any_bytes_stand_for_what_the_gguf_package_says(name: str) -> None:
    blocks_format, kind = BLOCK_FORMATS[name], gguf.GGMLQuantizationType[name]
    assert gguf.GGML_QUANT_SIZES[kind] == (blocks_format.num_elements, blocks_format.num_bytes)
    generator = np.random.default_rng(seed_of_tests())
    blocks = generator.integers(0, 256, (2000, blocks_format.num_bytes), dtype=np.uint8)
    expected = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    found = blocks_format.decode(torch.from_numpy(blocks))
    assert found.dtype is torch.float32
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("make", [quantise, quantise_by_torch])
def test_int8_holds_the_codes_of_q8_0_and_rounds_their_scales_once(make) -> None:
    """So nothing need be held in another way: what is lost is a part in 512 of a group's scale."""
    generator = np.random.default_rng(seed_of_tests())
    weight = generator.standard_normal((64, 512)).astype(np.float32) * 0.04
    stored = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    blocks = torch.from_numpy(stored).view(-1, 34)
    codes = blocks[:, 2:].view(torch.int8)
    scales = blocks[:, :2].contiguous().view(torch.float16).float()
    found = make(BLOCK_FORMATS["Q8_0"].decode(blocks).view(64, 512), 8)
    assert torch.equal(found.codes.view(-1, 32), codes)
    assert torch.equal(found.scales.view(-1, 1), scales.bfloat16())
    lost = (found.scales.view(-1, 1).float() / scales - 1).abs()
    assert 0 < lost.max() <= 2**-8
