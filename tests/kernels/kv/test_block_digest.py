import numpy as np
import pytest
import torch

from pagoda_kernels.kv import reference
from pagoda_kernels.kv.block_digest import digest_blocks
from pagoda_kernels.kv.digest_keys import BASE, column_keys, mix, mix_array, row_keys
from pagoda_kernels.kv.triton import block_digest as triton_block_digest

OPERATOR = {"cpu": digest_blocks, "triton": triton_block_digest.digest_blocks}
SIZES = [1, 2, 3, 4, 63, 127, 255, 256, 257, 1000, 2050, 40000]


def draw(num_blocks, num_bytes, device="cpu"):
    return torch.randint(0, 256, (num_blocks, num_bytes), dtype=torch.uint8, device=device)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_matches_reference(path, device, num_bytes):
    blocks = draw(2, num_bytes, device)
    got = OPERATOR[path](blocks)
    assert (got.dtype, got.shape, got.device) == (torch.uint8, (2, 16), blocks.device)
    assert torch.equal(got.cpu(), reference.digest_blocks(blocks.cpu()))


def test_is_the_same_in_every_release(path, device):
    block = (torch.arange(1000, device=device) % 251).to(torch.uint8)[None]
    got = OPERATOR[path](block).cpu().numpy().tobytes().hex()
    assert got == "47cdf3041ece769a6016874c3a98aa1b"


@pytest.mark.parametrize("num_bytes", [260, 1003])
def test_takes_rows_apart_and_off_word_bounds(path, device, num_bytes):
    wide = draw(3, 2050, device)
    for first in (0, 1, 4):
        blocks = wide[:, first : first + num_bytes]
        assert torch.equal(OPERATOR[path](blocks), OPERATOR[path](blocks.clone()))


@pytest.mark.parametrize(("num_blocks", "num_bytes"), [(0, 64), (3, 0)])
def test_takes_nothing(path, device, num_blocks, num_bytes):
    got = OPERATOR[path](draw(num_blocks, num_bytes, device)).cpu()
    want = reference.digest_blocks(draw(num_blocks, num_bytes))
    assert torch.equal(got, want.reshape(num_blocks, 16))


def test_every_flipped_bit_changes_both_lanes():
    block = draw(1, 515)
    flips = torch.zeros(8 * 515, 515, dtype=torch.uint8)
    bits = torch.arange(8 * 515)
    flips[bits, bits // 8] = (1 << bits % 8).to(torch.uint8)
    differs = digest_blocks(block ^ flips) != digest_blocks(block)
    assert differs[:, :8].any(1).all()
    assert differs[:, 8:].any(1).all()


def test_two_flipped_bits_change_it(seed):
    rng = np.random.default_rng(seed)
    block = draw(1, 4096)
    flipped = block.repeat(4000, 1)
    rows = np.arange(4000)
    # Top bits cancel first in sums modulo a power of two, so they are half of the draws.
    top = rng.random((4000, 2)) < 0.5
    for i in range(2):
        at = rng.integers(0, 1024, 4000) * 4 + np.where(top[:, i], 3, rng.integers(0, 4, 4000))
        bit = np.where(top[:, i], 7, rng.integers(0, 8, 4000))
        flipped.numpy()[rows, at] ^= (1 << bit).astype(np.uint8)
    changed = (flipped != block).any(1)
    differs = (digest_blocks(flipped) != digest_blocks(block)).any(1)
    assert torch.equal(differs, changed)


@pytest.mark.parametrize("word_bytes", [4, 8, 16, 256, 1024])
def test_swaps_change_it(seed, word_bytes):
    rng = np.random.default_rng(seed)
    block = draw(1, 8192)
    words = block.numpy().reshape(-1, word_bytes)
    pairs = rng.integers(0, len(words), (500, 2))
    swapped = np.repeat(words[None], 500, 0)
    swapped[np.arange(500), pairs[:, 0]] = words[pairs[:, 1]]
    swapped[np.arange(500), pairs[:, 1]] = words[pairs[:, 0]]
    blocks = torch.from_numpy(swapped.reshape(500, -1))
    changed = (blocks != block).any(1)
    assert torch.equal((digest_blocks(blocks) != digest_blocks(block)).any(1), changed)


def test_swaps_of_words_that_differ_in_their_top_bit_change_it():
    """The worst case of the proof: 2^31 times the difference of two keys."""
    words = np.zeros((1024, 1024), dtype=np.uint32)
    words[np.arange(1024), np.arange(1024)] = 1 << 31
    digests = digest_blocks(torch.from_numpy(words.view(np.uint8)))
    assert len(digests.unique(dim=0)) == 1024


def test_keys_keep_the_promise_up_to_8_gib():
    assert BASE % 8 == 3
    for exponent in (1, 3, 2, 6, 1 << 20, 3 << 20, 1 << 30):
        difference = (pow(BASE, exponent, 1 << 64) - 1) % (1 << 64)
        valuation = (difference & -difference).bit_length() - 1
        even_part = (exponent & -exponent).bit_length() - 1
        assert valuation == (2 + even_part if even_part else 1)
    assert (column_keys() % 2 == 1).all()
    assert (row_keys(5000) % 2 == 1).all()


def test_a_truncated_or_padded_block_has_another_digest():
    block = draw(1, 1024)
    block[0, 1000:] = 0
    cut = [digest_blocks(block[:, :n].contiguous()) for n in range(1000, 1025)]
    longer = digest_blocks(torch.nn.functional.pad(block, (0, 8)))
    assert len(torch.cat([*cut, longer]).unique(dim=0)) == 26


def test_lanes_look_random():
    blocks = torch.zeros(4096, 64, dtype=torch.uint8)
    blocks[:, 0] = torch.arange(4096).to(torch.uint8)
    blocks[:, 1] = (torch.arange(4096) >> 8).to(torch.uint8)
    bits = np.unpackbits(digest_blocks(blocks).numpy(), axis=1).mean(0)
    assert abs(bits - 0.5).max() < 0.05


def test_mix_of_arrays_is_mix():
    values = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    assert mix_array(values).tolist() == [mix(int(value)) for value in values]


def test_says_what_does_not_fit():
    with pytest.raises(ValueError, match=r"blocks: expected uint8, got torch\.int32"):
        digest_blocks(torch.zeros(2, 8, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"blocks: expected shape \[any, any\], got \[8\]"):
        digest_blocks(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="blocks: expected stride 1 in the last dim, got 2"):
        digest_blocks(torch.zeros(2, 8, dtype=torch.uint8)[:, ::2])
