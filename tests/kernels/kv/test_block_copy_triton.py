"""The Triton copies of blocks, and the digests that gather and scatter take and compare."""

import pytest
import torch

from pagoda_kernels import copy_blocks, digest_pool, gather_blocks, scatter_blocks
from pagoda_kernels.kv import reference
from pagoda_kernels.kv.block_digest import digest_blocks
from pagoda_kernels.kv.triton import block_copy as triton_block_copy

COPY = {"cpu": copy_blocks, "triton": triton_block_copy.copy_blocks}
DIGEST = {"cpu": digest_pool, "triton": triton_block_copy.digest_pool}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8]
SHAPES = [
    (2, 16, 2, 64),
    (1, 16, 1, 96),
    (3, 7, 3, 5),
    (1, 1, 1, 1),
    (1, 128, 3, 80),
    (2, 63, 1, 8),
]
"""num_layers, block_size, HK, D: runs that are whole rows of the digest and runs that are not."""


def draw_pool(shape, num_blocks, dtype, device, num_planes=2):
    num_layers, *block = shape
    full = (num_planes, num_layers, num_blocks, *block)
    width = dtype.itemsize
    raw = torch.randint(0, 256, (*full[:-1], full[-1] * width), dtype=torch.uint8, device=device)
    return raw.view(dtype)


def as_bytes(blocks):
    return blocks.contiguous().view(torch.uint8).reshape(len(blocks), -1)


def equal(got, want):
    return torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def gather(path, pool, block_ids):
    if path == "cpu":
        return gather_blocks(pool, block_ids, with_digest=True)
    blocks = torch.zeros(
        (len(block_ids), *pool.shape[:2], *pool.shape[3:]), dtype=torch.uint8, device=pool.device
    ).repeat_interleave(pool.element_size(), -1)
    blocks = blocks.view(pool.dtype)
    return blocks, triton_block_copy.gather_blocks_digest(pool, block_ids, blocks)


@pytest.mark.parametrize("shape", [(3, 16, 1, 64), (2, 7, 1, 40)], ids=str)
def test_a_pool_of_latents_has_one_plane(path, device, shape):
    pool, other = (draw_pool(shape, 9, torch.bfloat16, device, num_planes=1) for _ in range(2))
    ids, into = torch.tensor([7, 2], device=device), torch.tensor([0, 8], device=device)
    want = reference.gather_blocks(pool, ids)
    expected = digest_blocks(as_bytes(want).cpu())
    blocks, digests = gather(path, pool, ids)
    assert equal(blocks, want)
    assert torch.equal(digests.cpu(), expected)
    assert torch.equal(COPY[path](pool, ids, other, into).cpu(), expected)
    assert equal(reference.gather_blocks(other, into), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gather_with_digest_matches_reference(path, device, dtype, shape):
    pool = draw_pool(shape, 9, dtype, device)
    block_ids = torch.randperm(9, device=device)[:3]
    blocks, digests = gather(path, pool, block_ids)
    want = reference.gather_blocks(pool, block_ids)
    assert equal(blocks, want)
    assert torch.equal(digests.cpu(), digest_blocks(as_bytes(want).cpu()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scatter_undoes_gather(device, path, dtype, shape):
    pool = draw_pool(shape, 5, dtype, device)
    block_ids = torch.tensor([4, 0, 3], dtype=torch.int32, device=device)
    blocks, _ = gather(path, pool, block_ids)
    restored = torch.zeros_like(pool)
    if path == "cpu":
        scatter_blocks(restored, block_ids, blocks)
    else:
        triton_block_copy.scatter_blocks(restored, block_ids, blocks)
    taken = block_ids.long()
    assert equal(restored[:, :, taken], pool[:, :, taken])
    others = torch.tensor([1, 2], device=device)
    assert not restored[:, :, others].view(torch.uint8).any()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_takes_layers_and_blocks_apart_in_memory(path, device, first):
    wide = draw_pool((4, 16, 1, 16), 9, torch.bfloat16, device)
    pool = wide[:, first::2, first::3]
    block_ids = torch.tensor([1, 0], device=device)
    blocks, digests = gather(path, pool, block_ids)
    want = reference.gather_blocks(pool, block_ids)
    assert equal(blocks, want)
    assert torch.equal(digests.cpu(), digest_blocks(as_bytes(want).cpu()))


def test_takes_a_pool_of_transposed_heads(device):
    pool = draw_pool((2, 2, 16, 8), 5, torch.float16, device).transpose(3, 4)
    block_ids = torch.tensor([3, 1], device=device)
    blocks, digests = gather_blocks(pool, block_ids, with_digest=True)
    assert equal(blocks, reference.gather_blocks(pool, block_ids))
    assert torch.equal(digests, digest_blocks(as_bytes(blocks)))
    target = torch.zeros_like(pool)
    assert not scatter_blocks(target, block_ids, blocks, expected=digests).any()
    assert equal(target[:, :, block_ids], pool[:, :, block_ids])


@pytest.mark.parametrize("corrupt", [[], [1], [0, 2], [0, 1, 2]])
def test_scatter_leaves_the_place_of_a_corrupt_block_alone(device, corrupt):
    pool = draw_pool((2, 16, 2, 8), 7, torch.bfloat16, device)
    block_ids = torch.tensor([5, 0, 2], device=device)
    blocks, digests = gather_blocks(pool, block_ids, with_digest=True)
    for row in corrupt:
        as_bytes(blocks)[row, 100 * row + 7] ^= 1
    target = draw_pool((2, 16, 2, 8), 7, torch.bfloat16, device)
    want = target.clone()
    good = [row for row in range(3) if row not in corrupt]
    reference.scatter_blocks(want, block_ids[good], blocks[good])
    mismatches = scatter_blocks(target, block_ids, blocks, expected=digests)
    assert mismatches.tolist() == [row in corrupt for row in range(3)]
    assert equal(target, want)


def test_triton_scatter_skips_rows(device):
    pool = draw_pool((2, 16, 2, 8), 7, torch.bfloat16, device)
    blocks = draw_pool((2, 16, 2, 8), 3, torch.bfloat16, device).movedim(2, 0)
    block_ids = torch.tensor([5, 0, 2], device=device)
    want = pool.clone()
    reference.scatter_blocks(want, block_ids[1:2], blocks[1:2])
    skipped = torch.tensor([True, False, True], device=device)
    triton_block_copy.scatter_blocks(pool, block_ids, blocks, skipped)
    assert equal(pool, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copy_to_another_pool(path, device, dtype, shape):
    source, target = (draw_pool(shape, n, dtype, device) for n in (9, 5))
    source_ids = torch.randperm(9, device=device)[:3]
    target_ids = torch.randperm(5, device=device, dtype=torch.int32)[:3]
    want = target.clone()
    blocks = reference.gather_blocks(source, source_ids)
    reference.scatter_blocks(want, target_ids.long(), blocks)
    digests = COPY[path](source, source_ids, target, target_ids)
    assert equal(target, want)
    assert torch.equal(digests.cpu(), digest_blocks(as_bytes(blocks).cpu()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_digests_where_blocks_lie(path, device, shape):
    pool = draw_pool(shape, 9, torch.bfloat16, device)
    block_ids = torch.randperm(9, device=device)[:4]
    before = pool.clone()
    want = digest_blocks(as_bytes(reference.gather_blocks(pool, block_ids)).cpu())
    assert torch.equal(DIGEST[path](pool, block_ids).cpu(), want)
    assert equal(pool, before)


def test_copy_of_some_layers(path, device):
    source, target = (draw_pool((4, 16, 1, 64), n, torch.bfloat16, device) for n in (3, 4))
    ids = torch.tensor([2, 0], device=device)
    want = target.clone()
    want[:, 1:3, ids + 1] = source[:, 1:3, ids]
    digests = COPY[path](source[:, 1:3], ids, target[:, 1:3], ids + 1)
    assert equal(target, want)
    assert torch.equal(digests, gather_blocks(target[:, 1:3], ids + 1, with_digest=True)[1])


def test_takes_no_blocks(path, device):
    pool = draw_pool((2, 16, 2, 8), 3, torch.bfloat16, device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    blocks, digests = gather(path, pool, none)
    assert (blocks.shape, digests.shape) == ((0, 2, 2, 16, 2, 8), (0, 16))
    assert scatter_blocks(pool, none, blocks, expected=digests).shape == (0,)
    assert COPY[path](pool, none, pool.clone(), none).shape == (0, 16)
    assert DIGEST[path](pool, none).shape == (0, 16)


def test_says_which_digests_do_not_fit():
    pool = draw_pool((2, 16, 2, 8), 3, torch.bfloat16, "cpu")
    ids = torch.tensor([1])
    blocks = gather_blocks(pool, ids)
    with pytest.raises(ValueError, match=r"expected: expected shape \[1, 16\], got \[1, 8\]"):
        scatter_blocks(pool, ids, blocks, expected=torch.zeros(1, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="expected: expected uint8 on cpu, got"):
        scatter_blocks(pool, ids, blocks, expected=torch.zeros(1, 16))
