"""Shapes of real models, as data: what a benchmark builds with random weights.

Numbers are those of the published ``config.json`` files. Speed depends on shapes, not on values.
"""

from dataclasses import replace

from pagoda_engine.models.description import DecoderDescription, ExpertsDescription
from pagoda_engine.models.rope_scaling import RopeDescription

_LLAMA_3_1 = DecoderDescription(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    norm_eps=1e-5,
    rope=RopeDescription(
        theta=500000.0,
        rope_type="llama3",
        factor=8.0,
        original_max_position_embeddings=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    ),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm="none",
    sliding_windows=(None,) * 32,
    tie_word_embeddings=False,
    dtype="bfloat16",
)
_QWEN3_8B = replace(
    _LLAMA_3_1,
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    intermediate_size=12288,
    num_layers=36,
    max_position_embeddings=40960,
    norm_eps=1e-6,
    rope=RopeDescription(theta=1000000.0),
    qk_norm="head",
    sliding_windows=(None,) * 36,
)
_QWEN3_30B_A3B = replace(
    _QWEN3_8B,
    architecture="Qwen3MoeForCausalLM",
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=48,
    num_kv_heads=4,
    sliding_windows=(None,) * 48,
    experts=ExpertsDescription(
        num_experts=128,
        num_experts_per_tok=8,
        intermediate_size=768,
        norm_topk_prob=True,
        layers=frozenset(range(48)),
    ),
)
_LLAMA_3_1_70B = replace(
    _LLAMA_3_1,
    hidden_size=8192,
    intermediate_size=28672,
    num_layers=80,
    num_heads=64,
    sliding_windows=(None,) * 80,
)


def with_layers(shape: DecoderDescription, num_layers: int) -> DecoderDescription:
    """Return the same model with only its first layers."""
    experts = shape.experts
    if experts is not None:
        kept = frozenset(i for i in experts.layers if i < num_layers)
        experts = replace(experts, layers=kept)
    windows = shape.sliding_windows[:num_layers]
    return replace(shape, num_layers=num_layers, sliding_windows=windows, experts=experts)


_TINY = replace(
    with_layers(_LLAMA_3_1, 2),
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position_embeddings=16384,
)
_TINY_MOE = replace(
    with_layers(_QWEN3_30B_A3B, 2),
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position_embeddings=16384,
    experts=ExpertsDescription(
        num_experts=8,
        num_experts_per_tok=2,
        intermediate_size=64,
        norm_topk_prob=True,
        layers=frozenset(range(2)),
    ),
)

SHAPES: dict[str, DecoderDescription] = {
    "llama-3.1-8b": _LLAMA_3_1,
    "qwen3-8b": _QWEN3_8B,
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
    # Eight layers of 70B and its vocabulary: 18 GB in bf16.
    "llama-3.1-70b-8-layers": with_layers(_LLAMA_3_1_70B, 8),
    # For trying a benchmark out on a CPU.
    "tiny": _TINY,
    "tiny-moe": _TINY_MOE,
}
