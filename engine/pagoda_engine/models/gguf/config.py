"""The metadata of a GGUF file as the fields of ``config.json``, so that families read both alike.

Where a field maps singly, errors name the file's own key. Knows keys; knows nothing of families.
"""

import math
import struct
from collections.abc import Mapping
from typing import Any

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.gguf.architectures import (
    ARCHITECTURES,
    Architecture,
    architecture_of,
)
from pagoda_engine.models.gguf.arithmetic import refuse_others
from pagoda_engine.models.gguf.head import Head
from pagoda_engine.models.rope_scaling import GGUF_ROTARY_FACTOR
from pagoda_formats.gguf_file import GgufFile, GgufTensor

_MAX_ROPE_FACTORS = 1 << 16
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight")

FIELDS_BY_KEY = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "use_parallel_residual": "use_parallel_residual",
    "rope_theta": "rope.freq_base",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "logit_scale": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def gguf_config(file: GgufFile) -> tuple[ConfigReader, Architecture]:
    """Return a file's configuration, and how its architecture stores tensors.

    Raises:
        UnsupportedModelError: an architecture, or a way to scale the rotation, that nobody knows.
        CheckpointError: a field is missing or out of range.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModelError(file.path, "architecture", name, tuple(ARCHITECTURES))
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise CheckpointError(
            file.path,
            f"is one of {file.metadata['split.count']} parts; join them first, by "
            "llama-gguf-split --merge",
        )
    aliases = {field: f"{name}.{key}" for field, key in FIELDS_BY_KEY.items()}
    metadata = {key: value for key, value in file.metadata.items() if key.startswith(f"{name}.")}
    head = Head(file, name, ConfigReader(file.path, metadata, aliases))
    architecture = architecture_of(head)
    refuse_others(head, architecture.follows)
    fields = {
        **metadata,
        "architectures": [architecture.class_name],
        "vocab_size": head.dim("token_embd.weight", 0),
        "tie_word_embeddings": not head.has_tensor("output.weight"),
        "torch_dtype": _dtype(file),
        **_rotation(head, rounds_yarn=architecture.rounds_yarn),
        **architecture.fields(head),
    }
    return ConfigReader(file.path, fields, aliases), architecture


def _dtype(file: GgufFile) -> str:
    """Return the dtype to compute in: the matrices', and for those of few bits bf16.

    That rounds a weight by at most a part in 512, which is less than the least that any format of
    few bits has lost.
    """
    kinds = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if kinds <= {"F32", "F16"}:
        return "float16" if "F16" in kinds else "float32"
    return "bfloat16"


def _rotation(head: Head, *, rounds_yarn: bool) -> dict[str, Any]:
    """Return what says how heads turn; where a file does not say, llama.cpp's defaults."""
    head_dim, turning = head.head_dim, head.get("rope.dimension_count")
    fields: dict[str, Any] = {
        "head_dim": head_dim,
        GGUF_ROTARY_FACTOR: 1.0,
        "rope_scaling": _scaling(head, rounds_yarn=rounds_yarn),
    }
    if turning is not None:
        turning = head.config.integer(f"{head.name}.rope.dimension_count")
        if turning > head_dim:
            raise CheckpointError(
                head.file.path,
                f"{head.name}.rope.dimension_count is {turning}, must be at most the {head_dim} "
                "dims of a head",
            )
        fields[GGUF_ROTARY_FACTOR] = _part(turning, head_dim)
    if not head.config.has("rope_theta"):
        fields["rope_theta"] = 10000.0
    return fields


def _part(turning: int, head_dim: int) -> float:
    """Return the factor of which `RopeDescription.rotary_dim` makes so many dims."""
    factor = turning / head_dim
    return factor if int(head_dim * factor) == turning else math.nextafter(factor, 1.0)


def _scaling(head: Head, *, rounds_yarn: bool) -> Mapping[str, Any]:
    original = head.get("rope.scaling.original_context_length")
    kind = head.get("rope.scaling.type")
    factor = head.get("rope.scaling.factor") or head.get("rope.scale_linear")
    is_stretched = kind != "none" and factor not in (None, 0, 1)
    tables = [name for name in _ROPE_FACTORS if head.has_tensor(name)]
    if tables and is_stretched:
        only = (f"1, as the file has a factor for each pair of dims in {tables[0]}",)
        key = f"{head.name}.rope.scaling.factor"
        raise UnsupportedModelError(head.file.path, key, factor, only)
    if factors := _factors(head, "rope_freqs.weight"):  # Llama 3's way, worked out
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
        }
    if factors := _factors(head, "rope_factors_long.weight"):
        return {
            "rope_type": "longrope",
            "short_factor": _factors(head, "rope_factors_short.weight") or factors,
            "long_factor": factors,
            "attention_factor": head.get("rope.scaling.attn_factor") or 1.0,
            "original_max_position_embeddings": original,
        }
    if kind not in (None, "none", "linear", "yarn"):
        known = ("none", "linear", "yarn")
        raise UnsupportedModelError(head.file.path, f"{head.name}.rope.scaling.type", kind, known)
    if not is_stretched:
        return {"rope_type": "default"}
    magnitude = _magnitude(head)
    return {
        "rope_type": kind or "linear",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": head.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": head.get("rope.scaling.yarn_beta_slow"),
        "truncate": rounds_yarn,
        "mscale": magnitude,
        "mscale_all_dim": magnitude,
    }


def _magnitude(head: Head) -> float | None:
    """Return DeepSeek's ``mscale_all_dim``, of which files have a tenth; ``mscale`` is the same."""
    key = "rope.scaling.yarn_log_multiplier"
    if head.name != "deepseek2" or not head.get(key):
        return None
    return head.config.number(f"{head.name}.{key}") * 10


def _factors(head: Head, name: str) -> list[float]:
    """Return the numbers of a small float32 tensor; none without it."""
    tensor = head.file.tensors.get(name)
    return [] if tensor is None else _numbers(head.file, name, tensor)


def _numbers(file: GgufFile, name: str, tensor: GgufTensor) -> list[float]:
    count = math.prod(tensor.shape)
    if tensor.type_name != "F32" or count > _MAX_ROPE_FACTORS:
        raise CheckpointError(
            file.path,
            f"tensor {name} is {tensor.type_name} {list(tensor.shape)}, must be F32 with at most "
            f"{_MAX_ROPE_FACTORS} numbers",
        )
    with file.path.open("rb") as stream:
        stream.seek(tensor.offset)
        data = stream.read(tensor.num_bytes)
    return list(struct.unpack(f"<{count}f", data))
