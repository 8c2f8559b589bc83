"""What the C sources are handed, field by field as `sources/` declares it."""

import ctypes
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p


class Linear(ctypes.Structure):
    """A packed projection (product.h)."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("num_outputs", c_int64),
        ("width", c_int64),
        ("is_bf16", c_int32),
        ("is_gated", c_int32),
        ("bits", c_int32),
        ("has_zeros", c_int32),
        ("levels", c_void_p),
        ("lora", c_void_p),
        ("gate", c_int32),
        ("gate_limit", c_float),
        ("gate_alpha", c_float),
        ("is_activated", c_int32),
        ("exceptions", c_void_p),
        ("first_exceptions", c_void_p),
        ("high_bytes", c_void_p),
    )


class FeedForward(ctypes.Structure):
    """The two projections of one expert (experts.h)."""

    _fields_ = (("gate_up", c_void_p), ("down", c_void_p))


class Experts(ctypes.Structure):
    """A mixture of experts (experts.h)."""

    _fields_ = (
        ("router", c_void_p),
        ("choice_bias", c_void_p),
        ("experts", ctypes.POINTER(FeedForward)),
        ("shared", FeedForward),
        ("shared_gate", c_void_p),
        ("num_experts", c_int64),
        ("per_row", c_int64),
        ("num_groups", c_int64),
        ("top_groups", c_int64),
        ("scale", c_float),
        ("is_sigmoid", c_int32),
        ("is_renormalised", c_int32),
        ("expert_scales", c_void_p),
    )


class Lora(ctypes.Structure):
    """Adapters of a projection (lora.h)."""

    _fields_ = (
        ("a", c_void_p),
        ("b", c_void_p),
        ("ranks", c_void_p),
        ("scales", c_void_p),
        ("part_ends", c_void_p),
        ("num_parts", c_int64),
        ("max_rank", c_int64),
    )


class QuantiseJob(ctypes.Structure):
    """A dense weight and room for its codes and scales (quantise.h)."""

    _fields_ = (
        ("weight", c_void_p),
        ("levels", c_void_p),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("num_rows", c_int64),
        ("width", c_int64),
        ("is_bf16", c_int32),
    )


class Batch(ctypes.Structure):
    """Lengths and block tables of a step (attention.h)."""

    _fields_ = (
        ("cu_seqlens_q", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("table_stride", c_int64),
        ("slot_mapping", c_void_p),
        ("num_seqs", c_int64),
        ("num_tokens", c_int64),
        ("block_size", c_int64),
        ("block_stride", c_int64),
        ("cache_kind", c_int32),
        ("is_packed", c_int32),
    )


class AttentionShape(ctypes.Structure):
    """Heads (attention.h)."""

    _fields_ = (
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("scale", c_float),
        ("is_bf16", c_int32),
        ("soft_cap", c_float),
    )


class Latents(ctypes.Structure):
    """Latent attention of one layer (latents.h)."""

    _fields_ = (
        ("down", c_void_p),
        ("q_up", c_void_p),
        ("q_norm", c_void_p),
        ("kv_norm", c_void_p),
        ("k_up", ctypes.POINTER(c_void_p)),
        ("v_up", ctypes.POINTER(c_void_p)),
        ("kv_rank", c_int64),
        ("nope_dim", c_int64),
        ("rope_dim", c_int64),
        ("value_dim", c_int64),
        ("eps", c_float),
        ("is_interleaved", c_int32),
    )


class Layer(ctypes.Structure):
    """Weights of one layer (pagoda.c)."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", c_void_p),
        ("output", c_void_p),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("window", c_int64),
        ("experts", c_void_p),
        ("sinks", c_void_p),
        ("latents", c_void_p),
        ("cos_sin", c_void_p),
        ("rotary_dim", c_int64),
        ("attention_out_norm", c_void_p),
        ("feed_forward_out_norm", c_void_p),
        ("qk_norm_place", c_int32),
        ("qkv_clip", c_float),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("shape", ctypes.POINTER(AttentionShape)),
        ("v_norm", c_void_p),
        ("is_q_alone", c_int32),
        ("scalar", c_float),
        ("input_gate", c_void_p),
        ("input_projection", c_void_p),
        ("input_out_norm", c_void_p),
        ("dense_out_norm", c_void_p),
        ("router_norm", c_void_p),
        ("experts_in_norm", c_void_p),
        ("experts_out_norm", c_void_p),
    )


class Decoder(ctypes.Structure):
    """All layers (pagoda.c)."""

    _fields_ = (
        ("is_bf16", c_int32),
        ("hidden_size", c_int64),
        ("num_layers", c_int64),
        ("eps", c_float),
        ("embedding", c_void_p),
        ("tied", c_void_p),
        ("final_norm", c_void_p),
        ("layers", ctypes.POINTER(Layer)),
        ("embedding_multiplier", c_float),
        ("residual_multiplier", c_float),
        ("norm_kind", c_int32),
        ("is_parallel", c_int32),
        ("position_table", c_void_p),
        ("embedding_norm", c_void_p),
        ("alibi_slopes", c_void_p),
    )


class Bundle(ctypes.Structure):
    """Sequences that begin with the same blocks (attention_tasks.h)."""

    _fields_ = (
        ("first_task", c_int64),
        ("first_member", c_int64),
        ("shared_keys", c_int64),
        ("num_heads", c_int64),
    )


class Step(ctypes.Structure):
    """One step's tokens, caches and room for what is computed (pagoda.c)."""

    _fields_ = (
        ("batch", Batch),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("logit_rows", c_void_p),
        ("num_logit_rows", c_int64),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("layer_stride", c_int64),
        ("residual", c_void_p),
        ("kept", c_void_p),
        ("hidden", c_void_p),
        ("qkv", c_void_p),
        ("attended", c_void_p),
        ("inner", c_void_p),
        ("beside", c_void_p),
        ("bundles", ctypes.POINTER(Bundle)),
        ("members", ctypes.POINTER(c_int32)),
        ("logit_positions", c_void_p),
        ("logit_cu_seqlens", c_void_p),
        ("adapters", c_void_p),
        ("logit_adapters", c_void_p),
        ("shrunk", c_void_p),
        ("experts_room", c_void_p),
        ("latents_room", c_void_p),
        ("group_batches", ctypes.POINTER(Batch)),
        ("places", c_void_p),
        ("offsets", c_void_p),
        ("layer_inputs", c_void_p),
        ("experts_x", c_void_p),
        ("router_x", c_void_p),
        ("cut", c_void_p),
    )


class SampleJob(ctypes.Structure):
    """Rows of logits and room for their tokens (sampling.h)."""

    _fields_ = (
        ("logits", c_void_p),
        ("row_stride", c_int64),
        ("num_rows", c_int64),
        ("vocab_size", c_int64),
        ("parameters", c_void_p),
        ("token_ids", c_void_p),
        ("is_valid", c_void_p),
        ("biases", c_char_p),  # records of `LogitBias`
        ("seen", c_char_p),  # records of `SeenTokens`
        ("is_bf16", c_int32),
    )
