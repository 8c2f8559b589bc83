"""Keys of GGUF files that change what a model computes, and which of them are followed here.

A key of llama.cpp's vocabulary that an architecture does not follow is refused by its name, unless
its value says what is computed anyway. Sizes are not in here: tensors contradict wrong ones.
"""

from collections.abc import Collection, Mapping

from pagoda_engine.errors import UnsupportedModelError
from pagoda_engine.models.gguf.head import Head

Accepted = Mapping[str, Collection[object] | None]
"""Values of a key, after the architecture's name, with which nothing else is computed; None: the
architecture follows whatever it says."""

_OFF = (0,)
_OFF_OR_ONE = (0, 1)

NEUTRAL: Mapping[str, Collection[object]] = {
    "use_parallel_residual": (False,),
    "logit_scale": _OFF_OR_ONE,
    "residual_scale": _OFF_OR_ONE,
    "embedding_scale": _OFF_OR_ONE,
    "attn_logit_softcapping": _OFF,
    "final_logit_softcapping": _OFF,
    "router_logit_softcapping": _OFF,
    "swiglu_clamp_exp": (),
    "swiglu_clamp_shexp": (),
    "activation_sparsity_scale": (),
    "full_attention_interval": (),
    "nextn_predict_layers": _OFF,
    "n_deepstack_layers": _OFF,
    "moe_latent_size": _OFF,
    "embedding_length_per_layer_input": _OFF,
    "decoder_start_token_id": (),
    "swin_norm": (False,),
    "rescale_every_n_layers": _OFF,
    "token_shift_count": _OFF,
    "altup.active_idx": (),
    "altup.num_inputs": (),
    # experts
    "expert_count": _OFF,
    "expert_weights_scale": _OFF_OR_ONE,
    "expert_weights_norm": (False,),
    "expert_gating_func": _OFF_OR_ONE,  # 1: softmax
    "expert_group_count": _OFF_OR_ONE,
    "expert_group_used_count": _OFF_OR_ONE,
    "expert_group_scale": _OFF_OR_ONE,
    "experts_per_group": _OFF,
    # attention
    "attention.causal": (True,),
    "attention.scale": _OFF,
    "attention.output_scale": _OFF_OR_ONE,
    "attention.max_alibi_bias": _OFF,
    "attention.clamp_kqv": _OFF,
    "attention.sliding_window": _OFF,
    "attention.sliding_window_pattern": (),
    "attention.key_length_swa": (),
    "attention.value_length_swa": (),
    "attention.shared_kv_layers": _OFF,
    "attention.temperature_scale": _OFF,
    "attention.temperature_length": _OFF,
    "attention.relative_buckets_count": _OFF,
    "attention.group_norm_epsilon": (),
    "attention.group_norm_groups": (),
    # rotation
    "rope.dimension_count_swa": (),
    "rope.dimension_sections": (),
    "rope.scaling.alpha": _OFF_OR_ONE,
    "rope.scaling.attn_factor": _OFF_OR_ONE,
    "rope.scaling.yarn_log_multiplier": _OFF,
    "rope.scaling.yarn_ext_factor": (1, -1),
    "rope.scaling.yarn_attn_factor": (),
}


def refuse_others(head: Head, followed: Accepted) -> None:
    """Hold a file's keys against those that an architecture follows.

    Args:
        head: of the file.
        followed: see Accepted; of an architecture, before `NEUTRAL`.

    Raises:
        UnsupportedModelError: a key changes what is computed, and would not here.
    """
    accepted: dict[str, Collection[object] | None] = {
        **NEUTRAL,
        "attention.value_length": (head.head_dim,),
        "rope.freq_base_swa": (head.get("rope.freq_base"),),
        **followed,
    }
    for key, values in accepted.items():
        value = head.get(key)
        if value is None or values is None or value in values:
            continue
        known = tuple(str(each) for each in values) or ("a file without it",)
        raise UnsupportedModelError(head.file.path, f"{head.name}.{key}", value, known)
