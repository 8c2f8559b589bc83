"""What an adapter_config.json asks for, and a refusal of what is not done here.

Knows PEFT's fields. Knows no tensor.
"""

import math
from dataclasses import dataclass

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import AdapterError

NEUTRAL = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",  # of the base's weights; A and B are stored alike
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",  # of training alone
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
"""Fields that change nothing about what is computed, or are read here. Which modules are adapted is
told by the tensors."""

KEPT_BASE = (True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base's weights as they are."""

MAX_SCALE = 65504
"""The largest number of float16, of which a decoder's activations may be."""

REMEDIES = {
    "use_dora": "train it without DoRA, or serve it merged into the base model",
    "modules_to_save": "train it without whole modules, or serve it merged into the base model",
    "bias": 'train it with bias "none"',
    "lora_bias": "train it without lora_bias",
    "rank_pattern": "give all modules one rank",
    "alpha_pattern": "give all modules one lora_alpha",
    "init_lora_weights": "convert it: PEFT's save_pretrained takes path_initial_model_for_weight_"
    "conversion",
}


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Rank and scale of an adapter.

    Attributes:
        rank: r.
        scale: lora_alpha / r, or lora_alpha / sqrt(r) of a rank-stabilised one.
    """

    rank: int
    scale: float


def adapter_config(config: ConfigReader, *, max_rank: int) -> AdapterConfig:
    """Read the fields of a LoRA adapter of a causal model.

    Raises:
        AdapterError: it asks for something that is not done here, or for a rank above `max_rank`.
        CheckpointError: a field is not what it should be.
    """
    kind = config.string("peft_type")
    if kind != "LORA":
        raise AdapterError(config.path, f"peft_type is {kind!r}, must be 'LORA'")
    task = config.string("task_type", "CAUSAL_LM")
    if task != "CAUSAL_LM":
        raise AdapterError(config.path, f"task_type is {task!r}, must be 'CAUSAL_LM'")
    start = config.fields.get("init_lora_weights", True)
    if not any(start is kept or start == kept for kept in KEPT_BASE):
        _refuse(config, "init_lora_weights", start)
    bias = config.string("bias", "none")
    if bias != "none":
        _refuse(config, "bias", bias)
    for name, value in config.fields.items():
        if value and name not in NEUTRAL and name not in ("bias", "init_lora_weights"):
            _refuse(config, name, value)
    rank = config.integer("r")
    if rank > max_rank:
        raise AdapterError(
            config.path,
            f"r is {rank}, must be at most {max_rank}, for which there is room: raise "
            "max_adapter_rank",
        )
    alpha = config.number("lora_alpha")
    divisor = math.sqrt(rank) if config.boolean("use_rslora", False) else rank
    if alpha > MAX_SCALE * divisor:
        raise AdapterError(
            config.path, f"lora_alpha is {alpha:g}, must be at most {MAX_SCALE * divisor:g}"
        )
    return AdapterConfig(rank, alpha / divisor)


def _refuse(config: ConfigReader, name: str, value: object) -> None:
    remedy = REMEDIES.get(name, "it is not known here; serve the adapter merged into the base")
    raise AdapterError(config.path, f"{name} is {str(value)[:80]!r}, which is not served: {remedy}")
