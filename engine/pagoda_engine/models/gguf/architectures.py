"""Which architectures of GGUF files are supported, and what each has of its own.

An architecture is a class name, with which a family reads the same fields as from ``config.json``,
and what llama.cpp's converter does otherwise. Knows metadata; the rest is the families' affair.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.families.fields import FULL, MAX_LAYERS, SLIDING
from pagoda_engine.models.gguf.arithmetic import Accepted
from pagoda_engine.models.gguf.head import Head
from pagoda_engine.models.rope_scaling import GGUF_ROTARY_FACTOR

Fields = dict[str, Any]

_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Attributes:
        class_name: as ``architectures`` of ``config.json`` names it, see FAMILIES.
        fields: further fields of ``config.json``.
        follows: keys that change what is computed, and are followed; see `Accepted`.
        has_pairs_together: rows of Q and K are stored so that dims which turn as a pair lie side by
            side; in ``config.json``'s world they do not.
        norm_shift: added to the weights of norms.
        rounds_yarn: YaRN's borders are whole dims.
        second_norm: what the norm before the feed-forward part is called.
    """

    class_name: str
    fields: Callable[[Head], Fields] = lambda head: {}
    follows: Accepted = field(default_factory=dict)
    has_pairs_together: bool = False
    norm_shift: float = 0.0
    rounds_yarn: bool = True
    second_norm: str = "ffn_norm"


def _window(head: Head) -> Fields:
    return {"sliding_window": head.get("attention.sliding_window") or None}


def _windows(head: Head) -> Fields:
    """Which layers have the window: one flag each, or all but every n-th; else as the family."""
    key = "attention.sliding_window_pattern"
    flags = head.get(key)
    if flags is None:
        return _window(head)
    if type(flags) is int and flags > 0:
        num_layers = head.config.bounded("num_hidden_layers", MAX_LAYERS)
        flags = [(i + 1) % flags != 0 for i in range(num_layers)]
    if not isinstance(flags, list):
        raise CheckpointError(
            head.file.path, f"{head.name}.{key} is {flags!r}, must be a number, or a flag a layer"
        )
    return {**_window(head), "layer_types": [SLIDING if flag else FULL for flag in flags]}


def _experts(head: Head) -> Fields:
    """Layers without a router are dense."""
    num_layers = head.config.bounded("num_hidden_layers", MAX_LAYERS)
    dense = [i for i in range(num_layers) if not head.has_tensor(f"blk.{i}.ffn_gate_inp.weight")]
    first = next((i for i in range(num_layers) if i not in dense), 0)
    return {
        "moe_intermediate_size": head.get("expert_feed_forward_length")
        or head.dim(f"blk.{first}.ffn_gate_exps.weight", 1),
        "mlp_only_layers": dense,
    }


def _qwen2_moe(head: Head) -> Fields:
    shared = head.get("expert_shared_feed_forward_length")
    return {
        **_experts(head),
        "norm_topk_prob": bool(head.get("expert_weights_norm")),
        "shared_expert_intermediate_size": shared or head.dim("blk.0.ffn_gate_shexp.weight", 0),
    }


def _qwen3_moe(head: Head) -> Fields:
    return {**_experts(head), "norm_topk_prob": head.get("expert_weights_norm") is not False}


def _gemma_scale(head: Head) -> Fields:
    """The largest of a generation scales by its mean head; the file does not say so."""
    config = head.config
    if config.integer("num_hidden_layers") == _LAYERS_OF_27B[head.name]:
        scalar = config.integer("hidden_size") // config.integer("num_attention_heads")
        return {"query_pre_attn_scalar": scalar}
    return {"query_pre_attn_scalar": head.head_dim}


def _gemma2(head: Head) -> Fields:
    window = head.get("attention.sliding_window") or 4096
    return {**_gemma_scale(head), **_windows(head), "sliding_window": window}


def _gemma3(head: Head) -> Fields:
    local = head.get("rope.freq_base_swa") or 10000.0
    return {**_gemma_scale(head), **_windows(head), "rope_local_base_freq": local}


def _command_r(head: Head) -> Fields:
    return {"use_qk_norm": head.has_tensor("blk.0.attn_q_norm.weight")}


def _granite(head: Head) -> Fields:
    return {
        "embedding_multiplier": head.get("embedding_scale"),
        "attention_multiplier": head.get("attention.scale"),
        "residual_multiplier": head.get("residual_scale"),
        "logits_scaling": head.get("logit_scale"),
    }


def _deepseek(head: Head) -> Fields:
    """Newer files say what is cached as one head, and beside it what the heads are."""
    end = "_mla" if head.get("attention.key_length_mla") else ""
    key, value = (
        head.config.integer(f"{head.name}.attention.{name}_length{end}")
        for name in ("key", "value")
    )
    turning = head.config.integer("qk_rope_head_dim")
    return {
        "qk_nope_head_dim": key - turning,
        "v_head_dim": value,
        GGUF_ROTARY_FACTOR: None,  # of the dims that may turn all do
        "n_shared_experts": head.get("expert_shared_count"),
        "first_k_dense_replace": head.get("leading_dense_block_count") or 0,
        "norm_topk_prob": bool(head.get("expert_weights_norm")),
    }


def _deepseek3(head: Head) -> Fields:
    """Files without groups and a scale mean one group and none."""
    keys = ("expert_group_count", "expert_group_used_count", "expert_weights_scale")
    groups, used, scale = (head.get(key) or 1 for key in keys)
    more = {"n_group": groups, "topk_group": used, "routed_scaling_factor": scale}
    return {**_deepseek(head), **more}


def _deepseek2(head: Head) -> Fields:
    groups = head.get("expert_group_count")
    method = "group_limited_greedy" if isinstance(groups, int) and groups > 1 else "greedy"
    return {**_deepseek(head), "topk_method": method}


def _gpt_oss(head: Head) -> Fields:
    return {
        **_windows(head),
        "intermediate_size": head.get("expert_feed_forward_length"),
    }


def _olmo3(head: Head) -> Fields:
    """Its converter writes YaRN's magnitude, where it is what follows from the factor anyway."""
    key = "rope.scaling.attn_factor"
    magnitude = head.get(key)
    usual = 0.1 * math.log(max(head.get("rope.scaling.factor") or 1.0, 1.0)) + 1.0
    if magnitude is not None and not math.isclose(magnitude, usual, rel_tol=1e-3):
        raise UnsupportedModelError(
            head.file.path, f"{head.name}.{key}", magnitude, (f"{usual:g}",)
        )
    return _windows(head)


def _mpt(head: Head) -> Fields:
    """A file without ALiBi has learned positions instead."""
    key = "attention.max_alibi_bias"
    if not (steepness := head.get(key)):
        path, known = head.file.path, ("a number above 0",)
        raise UnsupportedModelError(path, f"{head.name}.{key}", steepness, known)
    bound = head.get("attention.clamp_kqv") or None
    return {"attn_config": {"alibi_bias_max": steepness, "clip_qkv": bound}}


def _olmoe(head: Head) -> Fields:
    return {
        "norm_topk_prob": bool(head.get("expert_weights_norm")),
        "clip_qkv": head.get("attention.clamp_kqv") or None,
    }


_WINDOW: Accepted = {"attention.sliding_window": None}
_WINDOWS: Accepted = {**_WINDOW, "attention.sliding_window_pattern": None}
_EXPERTS: Accepted = {"expert_count": None, "expert_weights_norm": None}
_LOGIT_SCALE: Accepted = {"logit_scale": None}
_DEEPSEEK: Accepted = {
    **_EXPERTS,
    "expert_weights_scale": None,
    "expert_gating_func": (0, 1, 2),
    "expert_group_count": None,
    "expert_group_used_count": None,
    "attention.value_length": None,
    "rope.scaling.yarn_log_multiplier": None,
}
_LLAMA: Accepted = _WINDOW  # which llama.cpp leaves out, and so do all that read these files
_MIXTRAL = Architecture(
    "MixtralForCausalLM",
    follows={**_LLAMA, "expert_count": None, "expert_weights_norm": (True,)},
    has_pairs_together=True,
)
_DEEPSEEK3 = Architecture("DeepseekV3ForCausalLM", _deepseek3, _DEEPSEEK)
_OLMO3 = Architecture("Olmo3ForCausalLM", _olmo3, {**_WINDOWS, "rope.scaling.attn_factor": None})
_SIGMOID = 2  # of `expert_gating_func`


def architecture_of(head: Head) -> Architecture:
    """Return a file's; some names are of two families each."""
    if head.name == "llama" and head.get("expert_count"):
        return _MIXTRAL
    if head.name == "deepseek2" and head.get("expert_gating_func") == _SIGMOID:
        return _DEEPSEEK3
    if head.name == "olmo2" and head.get("attention.sliding_window"):
        return _OLMO3
    return ARCHITECTURES[head.name]


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", follows=_LLAMA, has_pairs_together=True),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _qwen2_moe, _EXPERTS),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _qwen3_moe, _EXPERTS),
    "gemma": Architecture("GemmaForCausalLM", norm_shift=-1.0),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        _gemma2,
        {**_WINDOWS, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        norm_shift=-1.0,
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        _gemma3,
        {**_WINDOWS, "final_logit_softcapping": None, "rope.freq_base_swa": None},
        norm_shift=-1.0,
    ),
    "phi3": Architecture("Phi3ForCausalLM", _window, {**_WINDOW, "rope.scaling.attn_factor": None}),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _window, _WINDOW),
    "command-r": Architecture("CohereForCausalLM", _command_r, _LOGIT_SCALE),
    "cohere2": Architecture("Cohere2ForCausalLM", _windows, {**_WINDOWS, **_LOGIT_SCALE}),
    "granite": Architecture(
        "GraniteForCausalLM",
        _granite,
        {
            **_LOGIT_SCALE,
            "residual_scale": None,
            "embedding_scale": None,
            "attention.scale": None,
            "rope.scaling.finetuned": (True,),  # here it says whether heads turn at all
        },
        has_pairs_together=True,
    ),
    "deepseek2": Architecture("DeepseekV2ForCausalLM", _deepseek2, _DEEPSEEK),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        _gpt_oss,
        {**_WINDOWS, "expert_count": None},
        rounds_yarn=False,
        second_norm="post_attention_norm",
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", has_pairs_together=True),
    "chatglm": Architecture("GlmForCausalLM"),
    "glm4": Architecture("Glm4ForCausalLM"),
    "olmo2": Architecture("Olmo2ForCausalLM"),
    "olmoe": Architecture("OlmoeForCausalLM", _olmoe, {**_EXPERTS, "attention.clamp_kqv": None}),
    "gpt2": Architecture("GPT2LMHeadModel"),
    "gptneox": Architecture("GPTNeoXForCausalLM", follows={"use_parallel_residual": None}),
    "bloom": Architecture("BloomForCausalLM", follows={"attention.max_alibi_bias": (8,)}),
    "mpt": Architecture(
        "MptForCausalLM",
        _mpt,
        {"attention.max_alibi_bias": None, "attention.clamp_kqv": None},
    ),
}
