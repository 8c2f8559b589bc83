"""KV write: new K and V to random slots, beside `index_copy_` on the flattened cache."""

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from pagoda_kernels import write_kv
from pagoda_kernels.kv import reference

NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 16


def cases(device: torch.device) -> list[Case]:
    return [write_case(device, 8192), write_case(device, 65536, goal=0.85)]


def write_case(device: torch.device, num_tokens: int, goal: float | None = None) -> Case:
    """K and V read once and written once, the slots read."""
    elements = 2 * num_tokens * NUM_KV_HEADS * HEAD_DIM
    return Case(
        op="kv_write",
        name=f"T{num_tokens} HK{NUM_KV_HEADS} D{HEAD_DIM} bf16",
        check=lambda seed: _error(device, num_tokens, seed),
        tolerance=0.0,
        build=lambda: _launch(*_inputs(device, num_tokens)),
        num_bytes=2 * 2 * elements + 8 * num_tokens,
        goal=goal,
        baselines={"index_copy": lambda: _index_copy(*_inputs(device, num_tokens))},
    )


def _inputs(
    device: torch.device, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(k, v, cache, slots): K and V sliced out of a joined projection, the cache half used."""
    width = NUM_KV_HEADS * HEAD_DIM
    qkv = torch.randn(num_tokens, 6 * width, dtype=torch.bfloat16, device=device)
    k, v = (x.unflatten(1, (-1, HEAD_DIM)) for x in qkv[:, 4 * width :].chunk(2, 1))
    num_blocks = -(-2 * num_tokens // BLOCK_SIZE)
    shape = (2, num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    cache = torch.randn(shape, dtype=torch.bfloat16, device=device)
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device=device)[:num_tokens]
    return k, v, cache, slots


def _error(device: torch.device, num_tokens: int, seed: int) -> float:
    torch.manual_seed(seed)
    k, v, cache, slots = _inputs(device, num_tokens)
    slots[::7] = -1
    want = cache.to("cpu", copy=True)
    reference.write_kv(k.cpu(), v.cpu(), want[0], want[1], slots.cpu())
    write_kv(k, v, cache[0], cache[1], slots)
    return relative_error(cache.cpu(), want)


def _launch(k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> Launch:
    return lambda: write_kv(k, v, cache[0], cache[1], slots)


def _index_copy(
    k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> Launch:
    rows = cache.flatten(1, 2)

    def launch() -> None:
        rows[0].index_copy_(0, slots, k)
        rows[1].index_copy_(0, slots, v)

    return launch
