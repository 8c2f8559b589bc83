import contextlib

import pytest
import torch

from pagoda_kernels import PAD_SLOT, write_latent
from pagoda_kernels.kv import reference


def make_case(num_tokens, width, block_size, dtype, device):
    num_blocks = num_tokens // block_size + 3
    latent = torch.randn(num_tokens, width).to(device, dtype)
    cache = torch.full((num_blocks, block_size, width), float("nan"))
    slots = torch.randperm(num_blocks * block_size)[:num_tokens]
    return latent, cache.to(device, dtype), slots.to(device)


@pytest.fixture
def check(path, monkeypatch):
    """Without CUDA send CPU tensors to Triton's kernel, which then is interpreted."""

    def compare(latent, cache, slots):
        want = cache.clone()
        reference.write_latent(latent, want, slots)
        with monkeypatch.context() as patch:
            if path == "triton" and not torch.cuda.is_available():
                patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
                patch.setattr(torch.Tensor, "is_cuda", property(lambda _: True), raising=False)
            write_latent(latent, cache, slots)
        assert torch.equal(cache.nan_to_num(7.0), want.nan_to_num(7.0))

    return compare


@pytest.mark.parametrize(
    ("num_tokens", "width", "block_size"), [(1, 40, 16), (63, 576, 16), (31, 18, 128)]
)
def test_matches_reference(check, device, dtype, num_tokens, width, block_size):
    check(*make_case(num_tokens, width, block_size, dtype, device))


def test_skips_padding(check, device, dtype):
    latent, cache, slots = make_case(63, 40, 16, dtype, device)
    slots[::3] = PAD_SLOT
    check(latent, cache, slots)


def test_only_padding_changes_nothing(check, device):
    latent, cache, slots = make_case(5, 40, 16, torch.float32, device)
    check(latent, cache, torch.full_like(slots, PAD_SLOT))
    assert cache.isnan().all()


def test_takes_rows_and_blocks_apart_in_memory_and_int32_slots(check, device, dtype):
    latent, cache, slots = make_case(31, 40, 16, dtype, device)
    wide = torch.cat((latent, latent), 1)
    layers = torch.stack((cache, cache), 1)
    check(wide[:, 40:], layers[:, 1], slots.int())


def test_says_what_does_not_fit():
    latent, cache, slots = make_case(4, 40, 16, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"slot_mapping: expected shape \[4\], got \[3\]"):
        write_latent(latent, cache, slots[:3])
    with pytest.raises(ValueError, match=r"latent_cache: expected shape \[any, any, 40\]"):
        write_latent(latent, cache[..., :32], slots)
    with pytest.raises(ValueError, match="latent: expected an even width, got 39"):
        write_latent(latent[:, :39], cache[..., :39], slots)
    with pytest.raises(ValueError, match=r"latent_cache: expected torch.float32 on cpu as latent"):
        write_latent(latent, cache.half(), slots)
