import pytest
import torch

from pagoda.engine import KvCache, KvLayout

LAYOUT = KvLayout(num_layers=3, block_size=4, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)


def make_cache(num_blocks: int = 5) -> KvCache:
    cache = KvCache(LAYOUT, num_blocks, torch.device("cpu"))
    cache.tensor.copy_(torch.randn(cache.tensor.shape))
    return cache


def test_layout_names_everything_that_two_engines_must_agree_on() -> None:
    assert LAYOUT.name == "kv2-L3-HK2-D8-bfloat16-bs4"


def test_block_bytes_is_the_size_of_all_layers() -> None:
    assert LAYOUT.block_bytes == 2 * 3 * 4 * 2 * 8 * 2


def test_new_cache_is_zero() -> None:
    assert not KvCache(LAYOUT, 2, torch.device("cpu")).tensor.any()


def test_layer_is_a_view_of_keys_and_values() -> None:
    cache = make_cache()
    k, v = cache.layer(1)
    assert k.shape == (5, 4, 2, 8)
    assert k.data_ptr() == cache.tensor[0, 1].data_ptr()
    assert v.data_ptr() == cache.tensor[1, 1].data_ptr()


def test_read_blocks_returns_each_block_as_one_run_of_bytes() -> None:
    cache = make_cache()
    blocks = cache.read_blocks([3, 0])
    assert blocks.dtype == torch.uint8
    assert blocks.shape == (2, LAYOUT.block_bytes)
    assert blocks.is_contiguous()
    typed = blocks.view(torch.bfloat16).view(2, *LAYOUT.block_shape)
    assert torch.equal(typed[0], cache.tensor[:, :, 3])
    assert torch.equal(typed[1], cache.tensor[:, :, 0])


def test_write_blocks_is_the_inverse_of_read_blocks() -> None:
    source, target = make_cache(), make_cache()
    before = target.tensor.clone()
    target.write_blocks([4, 1], source.read_blocks([0, 2]))
    assert torch.equal(target.tensor[:, :, 4], source.tensor[:, :, 0])
    assert torch.equal(target.tensor[:, :, 1], source.tensor[:, :, 2])
    others = [0, 2, 3]
    assert torch.equal(target.tensor[:, :, others], before[:, :, others])


def test_write_blocks_takes_bytes_at_any_address() -> None:
    source, target = make_cache(), make_cache()
    message = torch.zeros(1 + LAYOUT.block_bytes, dtype=torch.uint8)
    message[1:] = source.read_blocks([2])[0]
    target.write_blocks([0], message[1:][None])
    assert torch.equal(target.tensor[:, :, 0], source.tensor[:, :, 2])


def test_no_blocks_is_no_work() -> None:
    cache = make_cache()
    blocks = cache.read_blocks([])
    assert blocks.shape == (0, LAYOUT.block_bytes)
    cache.write_blocks([], blocks)


@pytest.mark.parametrize(
    "blocks",
    [
        torch.zeros(1, 3, dtype=torch.uint8),
        torch.zeros(2, LAYOUT.block_bytes, dtype=torch.uint8),
        torch.zeros(1, LAYOUT.block_bytes, dtype=torch.int8),
    ],
    ids=["size", "count", "dtype"],
)
def test_write_blocks_refuses_another_shape(blocks: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=f"expected torch.uint8 \\(1, {LAYOUT.block_bytes}\\)"):
        make_cache().write_blocks([0], blocks)
