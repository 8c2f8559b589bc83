import pytest
import torch

from pagoda_kernels import gather_blocks, scatter_blocks
from pagoda_kernels.kv import reference

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]


@pytest.fixture
def kv_cache():
    return torch.randn(2, 3, 11, 16, 2, 8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_blocks", [0, 1, 7])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gather_makes_each_block_one_memory_range(kv_cache, device, num_blocks, index_dtype):
    block_ids = torch.randperm(11, device=device)[:num_blocks].to(index_dtype)
    blocks = gather_blocks(kv_cache.to(device), block_ids)
    assert blocks.is_contiguous()
    assert blocks.shape == (num_blocks, 2, 3, 16, 2, 8)
    for row, block_id in enumerate(block_ids.tolist()):
        assert torch.equal(blocks[row].cpu(), kv_cache[:, :, block_id])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_blocks", [0, 1, 7])
def test_scatter_matches_reference(kv_cache, device, num_blocks):
    block_ids = torch.randperm(11)[:num_blocks]
    blocks = torch.randn(num_blocks, 2, 3, 16, 2, 8)
    got = kv_cache.to(device, copy=True)
    scatter_blocks(got, block_ids.to(device), blocks.to(device))
    reference.scatter_blocks(kv_cache, block_ids, blocks)
    assert torch.equal(got.cpu(), kv_cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8])
def test_scatter_undoes_gather(dtype):
    kv_cache = torch.randint(0, 100, (2, 2, 9, 32, 1, 4)).to(dtype)
    block_ids = torch.tensor([8, 0, 3], dtype=torch.int32)
    restored = torch.zeros_like(kv_cache)
    scatter_blocks(restored, block_ids, gather_blocks(kv_cache, block_ids))
    assert torch.equal(restored[:, :, block_ids], kv_cache[:, :, block_ids])
    assert restored.count_nonzero() == kv_cache[:, :, block_ids].count_nonzero()


def test_says_what_does_not_fit(kv_cache):
    block_ids = torch.tensor([1, 2])
    with pytest.raises(
        ValueError, match=r"kv_cache: expected shape \[any, any, any, any, any, any\]"
    ):
        gather_blocks(kv_cache[0], block_ids)
    with pytest.raises(ValueError, match="block_ids: expected int32 or int64 on cpu, got"):
        gather_blocks(kv_cache, block_ids.float())
    with pytest.raises(ValueError, match=r"blocks: expected shape \[2, 2, 3, 16, 2, 8\], got"):
        scatter_blocks(kv_cache, block_ids, torch.zeros(1, 2, 3, 16, 2, 8))
    with pytest.raises(ValueError, match=r"blocks: expected torch\.float32 on cpu as kv_cache"):
        scatter_blocks(kv_cache, block_ids, torch.zeros(2, 2, 3, 16, 2, 8).half())
