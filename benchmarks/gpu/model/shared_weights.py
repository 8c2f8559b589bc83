"""One set of random weights for two programs: the engine, and `transformers` beside it.

The engine joins what a checkpoint keeps apart (Q, K and V; gate and up; experts), so the parts that
`transformers` wants are views into the engine's tensors: no second copy.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.weights.source import WeightSource

_EXPERTS = ".mlp.experts."


class SharedWeights:
    """A `WeightSource` that remembers under which names its tensors are known elsewhere.

    Attributes:
        tensors: by the names of `transformers`, which stacks a layer's experts in our order.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.tensors: dict[str, torch.Tensor] = {}

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return the parts joined, as the source does."""
        joined = self._source.take(parts, shape, dtype)
        name = parts[0].name
        if _EXPERTS in name:
            prefix = name[: name.index(_EXPERTS) + len(_EXPERTS)]
            kind = "down_proj" if ".down_proj." in name else "gate_up_proj"
            num_experts = len(parts) // (1 if kind == "down_proj" else 2)
            self.tensors[f"{prefix}{kind}"] = joined.view(num_experts, -1, joined.shape[-1])
            return joined
        sizes = [math.prod(part.shape) for part in parts]
        flat = joined.view(-1).split(sizes)
        for part, elements in zip(parts, flat, strict=True):
            self.tensors[part.name] = elements.view(part.shape)
        return joined


def import_transformers() -> None:
    """Take the seconds of the import now; what is wrong with it is for the points to say."""
    with contextlib.suppress(Exception):
        from transformers import AutoModelForCausalLM  # noqa: F401


def transformers_model(shape: DecoderDescription, weights: Mapping[str, torch.Tensor]) -> Any:
    """Return the model class of `transformers` with these weights, ready to run.

    Raises:
        RuntimeError: the names or shapes are not what this version of `transformers` expects.
    """
    from transformers import AutoModelForCausalLM

    some = next(iter(weights.values()))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            transformers_config(shape), dtype=some.dtype, attn_implementation="sdpa"
        )
    model.load_state_dict(dict(weights), assign=True)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RotaryEmbedding"):
            # Its buffers are no weights: they are computed, which the meta device does not do.
            model.set_submodule(name, type(module)(model.config).to(some.device))
    return model.eval()


def transformers_config(shape: DecoderDescription) -> Any:
    """Return the configuration of `transformers` that describes the same model."""
    from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig

    rope = shape.rope
    assert rope is not None, "all shapes rotate"
    parameters: dict[str, Any] = {"rope_type": rope.rope_type, "rope_theta": rope.theta}
    if rope.rope_type == "llama3":
        parameters |= {
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }
    fields: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": parameters,
        "tie_word_embeddings": shape.tie_word_embeddings,
    }
    experts = shape.experts
    if experts is not None:
        fields |= {
            "num_experts": experts.num_experts,
            "num_experts_per_tok": experts.num_experts_per_tok,
            "moe_intermediate_size": experts.intermediate_size,
            "norm_topk_prob": experts.norm_topk_prob,
        }
    classes = {
        "LlamaForCausalLM": LlamaConfig,
        "Qwen3ForCausalLM": Qwen3Config,
        "Qwen3MoeForCausalLM": Qwen3MoeConfig,
    }
    return classes[shape.architecture](**fields)
