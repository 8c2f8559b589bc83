"""A chunk of a prompt over what is before it: latents, beside K and V of the same arithmetic.

    PYTHONPATH=tests python benchmarks/engine/latent_prompts.py \
        [--threads 1] [--contexts 1024 16384]

Two layers of DeepSeek V2 Lite's attention (16 heads, latents of 512 + 64) with small feed-forward
parts, and two of a Llama with 16 heads of K and V, 160 wide: what K and V made of latents would
cost. One row's logits are wanted: of K and V the others leave the last layer before attention, of
latents behind it. Engines in bf16; the context is an import of random KV. A chunk's floor is its
multiply-adds over the rate of a bf16 product, measured beside it, in turns. Least of all rounds; of
one thread in CPU time, which others that compute do not count into.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from support.engine_driver import hash_block, make_request

from pagoda_engine import Engine, EngineConfig, KvSource, SamplingParams, load_model
from pagoda_kernels.native.packed_linear import PackedLinear

BLOCK_SIZE, CHUNK, HIDDEN, INNER, VOCAB_SIZE, NUM_HEADS = 16, 512, 512, 512, 1024, 16
KV_RANK, ROPE, NOPE, VALUE = 512, 64, 128, 128
DENSE_HEAD = (NOPE + ROPE + VALUE) // 2
SHARED = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_HEADS,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
LATENTS = {
    **SHARED,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "kv_lora_rank": KV_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": VALUE,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": INNER,
    "first_k_dense_replace": 2,
    "rope_scaling": None,
}
DENSE = {
    **SHARED,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "head_dim": DENSE_HEAD,
}
# Multiply-adds of a head for a query and a key, in all layers where a chunk's rows attend, and of a
# token in all products that every row takes part in.
_FEED_FORWARD = 3 * HIDDEN * INNER
_LATENT_Q_AND_KV = HIDDEN * (NUM_HEADS * (NOPE + ROPE) + KV_RANK + ROPE)
_LATENT_HEADS = NUM_HEADS * KV_RANK * (NOPE + VALUE)
_DENSE = HIDDEN * NUM_HEADS * DENSE_HEAD
MODELS = {
    "latents": (
        LATENTS,
        2 * (2 * KV_RANK + ROPE),
        2 * (_LATENT_Q_AND_KV + _LATENT_HEADS) + HIDDEN * NUM_HEADS * VALUE + _FEED_FORWARD,
    ),
    "K and V": (DENSE, 2 * DENSE_HEAD, 4 * _DENSE + _FEED_FORWARD + 2 * _DENSE),
}


class Bench:
    """An engine of one of the models, whose pool holds a context once."""

    def __init__(self, config: dict[str, Any], most: int, num_threads: int) -> None:
        limits = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=most // BLOCK_SIZE + 8,
            max_num_seqs=1,
            max_num_batched_tokens=CHUNK,
            max_model_len=most + 16,
            dtype="bfloat16",
            load_format="dummy",
            num_threads=num_threads,
        )
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self.engine = Engine(load_model(Path(folder), limits), limits, hash_block=hash_block)
        assert self.engine.model.decoder.is_batch_invariant, "these are the C layers"
        self.engine.kv_cache.tensor.normal_()
        self._number = 0

    def chunk_seconds(self, context: int, num_threads: int) -> float:
        """Return what a chunk takes after so many tokens."""
        self._number += 1
        tokens = torch.randint(10, VOCAB_SIZE, (context + CHUNK,)).tolist()
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        name, engine = str(self._number), self.engine
        engine.add(
            make_request(
                name, tokens, block_size=BLOCK_SIZE, sampling=sampling, kv_source=KvSource.IMPORT
            )
        )
        assert engine.step().reserved
        engine.import_finished(name, num_computed_tokens=context)
        clock = time.thread_time if num_threads == 1 else time.perf_counter
        started = clock()
        result = engine.step()
        seconds = clock() - started
        assert result.stats.num_prefill_tokens == CHUNK
        while engine.has_work():
            engine.step()
        return seconds


def product_rate(num_threads: int) -> float:
    """Return the operations per second of a bf16 product, of one try."""
    x, packed = (
        torch.randn(CHUNK, 2048).bfloat16(),
        PackedLinear(torch.randn(2048, 2048).bfloat16()),
    )
    clock = time.thread_time if num_threads == 1 else time.perf_counter
    packed(x)
    started = clock()
    packed(x)
    return 2 * CHUNK * 2048**2 / (clock() - started)


def operations(name: str, context: int) -> float:
    """Return those of a chunk."""
    _, each_pair, each_token = MODELS[name]
    pairs = CHUNK * context + CHUNK * (CHUNK + 1) / 2
    return 2 * (NUM_HEADS * each_pair * pairs + each_token * CHUNK)


def main() -> None:
    """Print a line for each context."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 16_384])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    most = max(options.contexts) + CHUNK
    benches = {name: Bench(model, most, options.threads) for name, (model, _, _) in MODELS.items()}
    rate, least = 0.0, dict[tuple[str, int], float]()
    for _ in range(options.rounds):
        for context in options.contexts:
            for name, bench in benches.items():
                rate = max(rate, product_rate(options.threads))
                seconds = bench.chunk_seconds(context, options.threads)
                least[name, context] = min(seconds, least.get((name, context), seconds))
    print(f"{options.threads} thread(s), a product {rate / 1e9:.0f} GFLOP/s, chunks of {CHUNK}")
    for (name, context), seconds in least.items():
        floor = operations(name, context) / rate
        print(
            f"  {name:8} {context:6} before: {1e3 * seconds:7.1f} ms, floor {1e3 * floor:7.1f}: "
            f"{seconds / floor:.2f} times"
        )


if __name__ == "__main__":
    main()
