"""What it costs that a block of unlike layers is one run of bytes: prompts and decodes, in turns.

    PYTHONPATH=tests python benchmarks/engine/kv_by_block.py

One random model, whose layers are alike, on one thread: its KV lies by layer, as such models' does,
and by block. Outputs must be the same to the bit.
"""

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from support.family_checkpoints import make_family_checkpoint

from pagoda_engine import EngineConfig, load_model
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.models.decoder import Decoder
from pagoda_kernels import plan_attention

BLOCK_SIZE, CHUNK, MAX_LEN = 16, 512, 4096
NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM = 12, 2, 128
NUM_PROMPTS, NUM_DECODES = 3, 60
CPU = torch.device("cpu")


def step(decoder: Decoder, cache: KvCache, num_new: int, end: int) -> tuple[float, torch.Tensor]:
    """Return the seconds of a step of one sequence, up to token `end`, and its last logits."""
    batch = plan_attention(
        seqlens_q=[num_new],
        context_lens=[end],
        block_tables=[list(range(cache.num_blocks))],
        block_size=BLOCK_SIZE,
        device=CPU,
    )
    positions = torch.arange(end - num_new, end)
    started = time.thread_time()
    rows = torch.tensor([num_new - 1])
    logits = decoder.forward(positions % 250, positions, batch, cache, rows)
    return time.thread_time() - started, logits


@torch.inference_mode()
def compare(decoder: Decoder) -> None:
    """Print a line for each length and layout."""
    by_layer = decoder.kv_layout(BLOCK_SIZE, torch.bfloat16)
    by_block = KvLayout.of_mixed(
        BLOCK_SIZE, [LayerHeads(NUM_KV_HEADS, HEAD_DIM)] * NUM_LAYERS, torch.bfloat16
    )
    layouts = {"by layer": by_layer, "by block": replace(by_block, is_packed=by_layer.is_packed)}
    for length in (1024, MAX_LEN):
        num_blocks = length // BLOCK_SIZE + 1
        caches = {name: KvCache(layout, num_blocks, CPU) for name, layout in layouts.items()}
        prompt, decode = (dict.fromkeys(caches, math.inf) for _ in range(2))
        found: dict[str, torch.Tensor] = {}
        for _ in range(NUM_PROMPTS):
            for name, cache in caches.items():
                ends = range(CHUNK, length + 1, CHUNK)
                took = sum(step(decoder, cache, CHUNK, end)[0] for end in ends)
                prompt[name] = min(prompt[name], took)
        for _ in range(NUM_DECODES):
            for name, cache in caches.items():
                took, found[name] = step(decoder, cache, 1, length + 1)
                decode[name] = min(decode[name], took)
        assert torch.equal(*found.values())
        for name in caches:
            print(f"{length} tokens {name}: {prompt[name]:.3f} s, {decode[name] * 1e3:.2f} ms")


def main() -> None:
    """Load the model and compare."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_family_checkpoint(
            Path(folder),
            "llama",
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=8,
            num_key_value_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            max_position_embeddings=MAX_LEN + BLOCK_SIZE,
        )
        config = EngineConfig(dtype="bfloat16", max_model_len=MAX_LEN + BLOCK_SIZE)
        compare(load_model(Path(folder), config).decoder)


if __name__ == "__main__":
    main()
