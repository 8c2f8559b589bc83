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
HEAD = "heads.{}"
"""End of a head's part of what makes K or V of latents; a file has a layer's in one tensor."""

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
    q_up="attn_q_b",
    q_latent_norm="attn_q_a_norm",
    kv_latent_norm="attn_kv_a_norm",
    kv_up="attn_kv_b",
    k_up=f"attn_k_b.{HEAD}",
    v_up=f"attn_v_b.{HEAD}",
    sinks="attn_sinks.weight",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    attention_output="attn_output",
    gate_up=("ffn_gate", "ffn_up"),
    up="ffn_up",
    down="ffn_down",
    router="ffn_gate_inp",
    router_bias="exp_probs_b.bias",
    expert=EXPERT,
    expert_gate_up=("ffn_gate", "ffn_up"),
    expert_down="ffn_down",
    shared_expert=SHARED_EXPERT,
    shared_expert_gate="ffn_gate_inp_shexp",
    ignored=_ROPE_FACTORS,
)


def gguf_names(
    names: WeightNames,
    *,
    second_norm: str = "ffn_norm",
    has_heads_apart: bool = False,
    has_qkv_joined: bool = False,
) -> WeightNames:
    """Return GGUF's name for each tensor that a family has; gate and up are joined as it has them.

    Args:
        names: the family's.
        second_norm: see `Architecture`.
        has_heads_apart: the file has what makes K and V of latents head by head.
        has_qkv_joined: the file has Q, K and V in one tensor.
    """
    absent: dict[str, Any] = {
        field.name: "" for field in fields(names) if getattr(names, field.name) == ""
    }
    if "feed_forward_in_norm" not in absent:
        absent["feed_forward_in_norm"] = second_norm
    if names.latents and has_heads_apart:
        absent = {**absent, "k_up": _NAMES.k_up, "v_up": _NAMES.v_up}
    found = replace(_NAMES, **absent)
    if names.latents:
        q = "attn_q_a" if names.latents[0].endswith("q_a_proj") else "attn_q"
        found = replace(found, latents=(q, "attn_kv_a_mqa"))
    if has_qkv_joined:
        found = replace(found, qkv=("attn_qkv",))
    if len(names.gate_up) == 1:
        found = replace(found, gate_up=("ffn_up",))
    return found
