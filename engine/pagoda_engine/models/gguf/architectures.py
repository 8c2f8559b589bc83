"""Which architectures of GGUF files are supported, and what each has of its own.

An architecture is a class name, with which a family reads the same fields as from ``config.json``,
and what llama.cpp's converter does otherwise. Knows metadata; the rest is the families' affair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import UnsupportedModelError
from pagoda_formats.gguf_file import GgufFile

Fields = dict[str, Any]

_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True, slots=True)
class Head:
    """A file's head, and its fields under the names of ``config.json`` as far as they map singly.

    Attributes:
        file: the head.
        name: of the architecture, which its keys begin with.
        config: see above.
    """

    file: GgufFile
    name: str
    config: ConfigReader

    def get(self, key: str) -> Any:
        """Return the value of one of the architecture's keys, or None."""
        return self.file.metadata.get(f"{self.name}.{key}")

    def has_tensor(self, name: str) -> bool:
        """Tell whether the file has a tensor."""
        return name in self.file.tensors

    def dim(self, tensor: str, axis: int) -> int | None:
        """Return a size of a tensor; None without it."""
        found = self.file.tensors.get(tensor)
        return found.shape[axis] if found is not None and axis < len(found.shape) else None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    Attributes:
        class_name: as ``architectures`` of ``config.json`` names it, see FAMILIES.
        fields: further fields of ``config.json``.
        has_pairs_together: rows of Q and K are stored so that dims which turn as a pair lie side by
            side; in ``config.json``'s world they do not.
        norm_shift: added to the weights of norms.
        rounds_yarn: YaRN's borders are whole dims.
        second_norm: what the norm before the feed-forward part is called.
    """

    class_name: str
    fields: Callable[[Head], Fields] = lambda head: {}
    has_pairs_together: bool = False
    norm_shift: float = 0.0
    rounds_yarn: bool = True
    second_norm: str = "ffn_norm"


def _window(head: Head) -> Fields:
    return {"sliding_window": head.get("attention.sliding_window") or None}


def _experts(head: Head) -> Fields:
    """Layers without a router are dense."""
    num_layers = head.config.bounded("num_hidden_layers", 4096)
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
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": shared or head.dim("blk.0.ffn_gate_shexp.weight", 0),
    }


def _qwen3_moe(head: Head) -> Fields:
    return {**_experts(head), "norm_topk_prob": True}


def _gemma_scale(head: Head) -> Fields:
    """The largest of a generation scales by its mean head; the file does not say so."""
    config = head.config
    if config.integer("num_hidden_layers") == _LAYERS_OF_27B[head.name]:
        scalar = config.integer("hidden_size") // config.integer("num_attention_heads")
        return {"query_pre_attn_scalar": scalar}
    return {"query_pre_attn_scalar": config.integer("head_dim", 256)}


def _gemma2(head: Head) -> Fields:
    window = head.get("attention.sliding_window") or 4096
    return {**_gemma_scale(head), "sliding_window": window}


def _gemma3(head: Head) -> Fields:
    window = head.get("attention.sliding_window")
    pattern = head.get("attention.sliding_window_pattern")
    return {
        **_gemma_scale(head),
        "sliding_window": window or None,
        "sliding_window_pattern": pattern if isinstance(pattern, int) else 6,
        "rope_local_base_freq": head.get("rope.freq_base_swa") or 10000.0,
    }


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
    temperature = f"{head.name}.attention.temperature_scale"  # of Q, by its position: Mistral's
    if head.config.has(temperature):
        value = head.config.fields[temperature]
        raise UnsupportedModelError(head.file.path, temperature, value, ("none",))
    end = "_mla" if head.get("attention.key_length_mla") else ""
    key, value = (
        head.config.integer(f"{head.name}.attention.{name}_length{end}")
        for name in ("key", "value")
    )
    turning = head.config.integer("qk_rope_head_dim")
    return {
        "qk_nope_head_dim": key - turning,
        "v_head_dim": value,
        "partial_rotary_factor": None,  # of the dims that may turn all do
        "n_shared_experts": head.get("expert_shared_count"),
        "first_k_dense_replace": head.get("leading_dense_block_count") or 0,
        "norm_topk_prob": bool(head.get("expert_weights_norm")),
    }


def _deepseek2(head: Head) -> Fields:
    groups = head.get("expert_group_count")
    method = "group_limited_greedy" if isinstance(groups, int) and groups > 1 else "greedy"
    return {**_deepseek(head), "topk_method": method}


def _gpt_oss(head: Head) -> Fields:
    return {
        **_window(head),
        "intermediate_size": head.get("expert_feed_forward_length"),
    }


_MIXTRAL = Architecture("MixtralForCausalLM", has_pairs_together=True)
_DEEPSEEK3 = Architecture("DeepseekV3ForCausalLM", _deepseek)
_SIGMOID = 2  # of `expert_gating_func`


def architecture_of(head: Head) -> Architecture:
    """Return a file's; two names are of two families each."""
    if head.name == "llama" and head.get("expert_count"):
        return _MIXTRAL
    if head.name == "deepseek2" and head.get("expert_gating_func") == _SIGMOID:
        return _DEEPSEEK3
    return ARCHITECTURES[head.name]


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", has_pairs_together=True),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _qwen2_moe),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _qwen3_moe),
    "gemma": Architecture("GemmaForCausalLM", norm_shift=-1.0),
    "gemma2": Architecture("Gemma2ForCausalLM", _gemma2, norm_shift=-1.0),
    "gemma3": Architecture("Gemma3ForCausalLM", _gemma3, norm_shift=-1.0),
    "phi3": Architecture("Phi3ForCausalLM", _window),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _window),
    "command-r": Architecture("CohereForCausalLM", _command_r),
    "granite": Architecture("GraniteForCausalLM", _granite, has_pairs_together=True),
    "deepseek2": Architecture("DeepseekV2ForCausalLM", _deepseek2),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", _gpt_oss, rounds_yarn=False, second_norm="post_attention_norm"
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", has_pairs_together=True),
}
