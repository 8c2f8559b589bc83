"""Which families are supported, by the class name in their configuration."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pagoda_engine.checkpoints import mxfp4
from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.bloom import bloom
from pagoda_engine.models.families.cohere import cohere, cohere2
from pagoda_engine.models.families.deepseek import deepseek2, deepseek3
from pagoda_engine.models.families.gemma.gemma import gemma, gemma2, gemma3, gemma3_with_images
from pagoda_engine.models.families.gemma.gemma4 import (
    gemma4,
    gemma4_unified,
    gemma4_unified_with_images,
    gemma4_with_images,
)
from pagoda_engine.models.families.glm import glm, glm4
from pagoda_engine.models.families.gpt2 import gpt2
from pagoda_engine.models.families.gpt_neox import gpt_neox
from pagoda_engine.models.families.gpt_oss import gpt_oss
from pagoda_engine.models.families.llama import granite, llama
from pagoda_engine.models.families.mistral import cwm, mistral, mistral3_with_images, mixtral
from pagoda_engine.models.families.mpt import mpt
from pagoda_engine.models.families.olmo import olmo2, olmo3, olmoe
from pagoda_engine.models.families.phi import phi3
from pagoda_engine.models.families.qwen import qwen2, qwen2_moe, qwen3, qwen3_moe, seed_oss
from pagoda_engine.models.families.smollm import smollm3
from pagoda_engine.models.families.starcoder import starcoder2

FAMILIES: dict[str, Callable[[ConfigReader], DecoderDescription]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "MinistralForCausalLM": mistral,
    "CwmForCausalLM": cwm,
    "Mistral3ForConditionalGeneration": mistral3_with_images,
    "MixtralForCausalLM": mixtral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "SeedOssForCausalLM": seed_oss,
    "SmolLM3ForCausalLM": smollm3,
    "GraniteForCausalLM": granite,
    "Phi3ForCausalLM": phi3,
    "Olmo2ForCausalLM": olmo2,
    "Olmo3ForCausalLM": olmo3,
    "OlmoeForCausalLM": olmoe,
    "GemmaForCausalLM": gemma,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3_with_images,
    "Gemma4ForCausalLM": gemma4,
    "Gemma4ForConditionalGeneration": gemma4_with_images,
    "Gemma4UnifiedForCausalLM": gemma4_unified,
    "Gemma4UnifiedForConditionalGeneration": gemma4_unified_with_images,
    "GlmForCausalLM": glm,
    "Glm4ForCausalLM": glm4,
    "CohereForCausalLM": cohere,
    "Cohere2ForCausalLM": cohere2,
    "Starcoder2ForCausalLM": starcoder2,
    "GPTNeoXForCausalLM": gpt_neox,
    "GPT2LMHeadModel": gpt2,
    "GptOssForCausalLM": gpt_oss,
    "BloomForCausalLM": bloom,
    "MptForCausalLM": mpt,
    "MPTForCausalLM": mpt,  # its authors' spelling
    "DeepseekV2ForCausalLM": deepseek2,
    "DeepseekV3ForCausalLM": deepseek3,
}


def read_description(path: Path) -> DecoderDescription:
    """Read ``config.json``; raises as `describe`, and where the file is missing."""
    return describe(ConfigReader.open(path))


def describe(config: ConfigReader) -> DecoderDescription:
    """Read a configuration.

    Raises:
        UnsupportedModelError: an architecture or option that the decoder does not implement.
        CheckpointError: a field is missing or out of range.
    """
    path = config.path
    match architectures := config.fields.get("architectures"):
        case [str() as architecture]:
            pass
        case _:
            raise CheckpointError(
                path, f"architectures is {architectures!r}, must be a list of one name"
            )
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(path, "architecture", architecture, tuple(FAMILIES))
    if config.has("quantization_config"):
        method = config.section("quantization_config").string("quant_method", "")
        if method == "mxfp4":
            return _with_mxfp4(config, family(config))
    return family(config)


def _with_mxfp4(config: ConfigReader, description: DecoderDescription) -> DecoderDescription:
    """Return a description whose experts are in the one format of files that is read."""
    experts, what = description.experts, config.fields["quantization_config"]
    if experts is None or description.names.experts_layout != "stacked":
        known = ("none", "mxfp4 of gpt-oss' experts")
        raise UnsupportedModelError(config.path, "quantization_config", what, known)
    widths = {
        "hidden_size": description.hidden_size,
        "intermediate_size": experts.intermediate_size,
    }
    for name, width in widths.items():
        if width % mxfp4.BLOCK:
            raise CheckpointError(
                config.path, f"{name} is {width}, must be a multiple of {mxfp4.BLOCK} for mxfp4"
            )
    return replace(description, experts=replace(experts, stored="mxfp4"))
