"""What GGUF calls the tensors of a decoder: the same for every family.

Knows roles, as `WeightNames` has them. Knows nothing of files.
"""

from dataclasses import fields, replace
from typing import Any

from pagoda_engine.models.weights.names import WeightNames

LAYER = "blk.{}."
EXPERT, SHARED_EXPERT = "experts.{}.", "shared_expert."
"""Prefixes after a layer's: of one expert, and of the one that every token goes through. A file has
the experts of a layer in one tensor, and gives the shared one's an end of their own."""

_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_NAMES = WeightNames(
    embedding="token_embd",
    positions="position_embd",
    embedding_norm="token_embd_norm",
    final_norm="output_norm",
    output="output",
    layer=LAYER,
    attention_in_norm="attn_norm",
    attention_out_norm="post_attention_norm",
    feed_forward_in_norm="ffn_norm",
    feed_forward_out_norm="post_ffw_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    attention_output="attn_output",
    gate_up=("ffn_gate", "ffn_up"),
    up="ffn_up",
    down="ffn_down",
    router="ffn_gate_inp",
    expert=EXPERT,
    expert_gate_up=("ffn_gate", "ffn_up"),
    expert_down="ffn_down",
    shared_expert=SHARED_EXPERT,
    shared_expert_gate="ffn_gate_inp_shexp",
    ignored=_ROPE_FACTORS,
)


def gguf_names(names: WeightNames) -> WeightNames:
    """Return GGUF's name for each tensor that a family has, joined ones as the family has them."""
    absent: dict[str, Any] = {
        field.name: "" for field in fields(names) if getattr(names, field.name) == ""
    }
    found = replace(_NAMES, **absent)
    if len(names.qkv) == 1:
        found = replace(found, qkv=("attn_qkv",))
    if len(names.gate_up) == 1:
        found = replace(found, gate_up=("ffn_up",))
    return found
