"""Every family, as transformers makes its checkpoint: logits, greedy tokens, memory, in float32.

Here is tested that each one's recipe is right; how the engine schedules, with fewer families.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoder_logits import SCHEDULES, SEQUENCES, assert_close, logits_of
from support.engine_driver import EngineDriver
from support.family_checkpoints import FAMILY_CONFIGS, make_family_checkpoint
from support.held_bytes import held_bytes
from support.oracle import Oracle
from support.random_tokens import random_tokens
from support.tiny_checkpoints import make_tiny_checkpoint
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from pagoda_engine import CheckpointError, EngineConfig, SamplingParams, load_model
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models import latent_attention
from pagoda_engine.models.families.registry import FAMILIES
from pagoda_engine.models.weights.num_bytes import weight_bytes
from pagoda_kernels.native import packed_linear

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FILES = sorted({family.__module__.rpartition(".")[2] for family in FAMILIES.values()})


@pytest.fixture(scope="module", params=FAMILY_CONFIGS)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp(request.param)
    return Oracle(make_family_checkpoint(folder, request.param))


def test_every_family_has_a_checkpoint() -> None:
    names = {**MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    made = {names[fields["model_type"]] for fields in FAMILY_CONFIGS.values()}
    assert made | {"MPTForCausalLM"} == {*FAMILIES}, "transformers spells that one otherwise"


@pytest.mark.parametrize("family", FILES)
def test_the_name_of_a_file_chooses_its_tests(family: str) -> None:
    """As the how-to says: ``-k <family>``."""
    assert any(family in name for name in FAMILY_CONFIGS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_logits_are_close(oracle: Oracle, schedule: str) -> None:
    found = logits_of(oracle.model.decoder, SEQUENCES, SCHEDULES[schedule])
    for logits, tokens in zip(found, SEQUENCES, strict=True):
        assert_close(logits, oracle.logits(tokens))


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_logits_by_torchs_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Layer by layer, as in fp16 and on processors without the native operators."""
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    oracle = Oracle(make_family_checkpoint(tmp_path, family))
    assert not oracle.model.decoder.is_native
    found = logits_of(oracle.model.decoder, SEQUENCES, SCHEDULES["mixed"])
    for logits, tokens in zip(found, SEQUENCES, strict=True):
        assert_close(logits, oracle.logits(tokens))


def test_greedy_tokens_over_64_steps(oracle: Oracle) -> None:
    config = EngineConfig(
        block_size=8,
        num_blocks=128,
        dtype="float32",
        max_model_len=512,
        max_num_batched_tokens=24,
    )
    driver = EngineDriver(oracle.model, config)
    sampling = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    outputs = driver.generate(SEQUENCES, sampling=sampling)
    assert outputs == oracle.all_greedy(SEQUENCES, 64, outputs)
    driver.sequences.clear()
    assert driver.generate(SEQUENCES, sampling=sampling) == outputs
    num_prefilled = [driver.sequences[str(i)].num_prefilled_tokens for i in range(3)]
    assert num_prefilled == [70 - 64, 41 - 40, 5], "whole blocks were cached"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_kv_take_what_was_reckoned(
    oracle: Oracle, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)  # that rounds sizes up
    model = load_model(oracle.folder, EngineConfig(dtype=dtype, max_model_len=100))
    shape = model.description
    assert weight_bytes(shape, model.dtype) == held_bytes(model.decoder)
    layout = shape.kv_layout(16, model.dtype)
    assert shape.kv_bytes_per_token(model.dtype) * 16 == layout.block_bytes


@pytest.mark.parametrize("max_model_len", [512, 600], ids=["short", "long"])
def test_longrope_turns_as_the_longest_sequence_does(tmp_path: Path, max_model_len: int) -> None:
    oracle = Oracle(make_family_checkpoint(tmp_path, "phi3_long"))
    config = EngineConfig(dtype="float32", max_model_len=max_model_len)
    decoder = load_model(tmp_path, config).decoder
    tokens = random_tokens(max_model_len)
    found = logits_of(decoder, [tokens], [[300], [max_model_len - 300]])
    assert_close(found[0], oracle.logits(tokens))


def test_dynamic_rope_turns_as_the_longest_sequence_does(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    oracle = Oracle(make_tiny_checkpoint(tmp_path, rope_scaling=scaling))
    decoder = load_model(tmp_path, EngineConfig(dtype="float32", max_model_len=700)).decoder
    tokens = random_tokens(700)
    found = logits_of(decoder, [tokens], [[300], [400]])
    assert_close(found[0], oracle.logits(tokens))
    assert decoder.description.max_position_embeddings == 1024


@pytest.mark.parametrize(
    ("family", "differing", "equal"),
    [("phi3_long", (512, 513), (513, 2048)), ("phi3", (), (100, 512))],
)
def test_kv_of_another_rotation_has_another_identity(
    tmp_path: Path, family: str, differing: tuple[int, ...], equal: tuple[int, ...]
) -> None:
    folder = make_family_checkpoint(tmp_path, family)

    def identities(lengths: tuple[int, ...]) -> set[bytes]:
        configs = [EngineConfig(max_model_len=length) for length in lengths]
        return {load_model(folder, config).fingerprint for config in configs}

    assert len(identities(differing)) == len(differing)
    assert len(identities(equal)) == 1


def test_dynamic_rope_has_an_identity_for_every_length(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    folder = make_tiny_checkpoint(tmp_path, rope_scaling=scaling)
    configs = [EngineConfig(max_model_len=length) for length in (300, 512, 700, 701)]
    identities = [load_model(folder, config).fingerprint for config in configs]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3


def test_gpt2_of_a_bare_model(tmp_path: Path) -> None:
    """As the first one is published: no prefix, and a mask that is no weight."""
    oracle = Oracle(make_family_checkpoint(tmp_path, "gpt2"))
    path = tmp_path / "model.safetensors"
    weights = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    weights["h.0.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
    save_file(weights, path)
    model = load_model(tmp_path, EngineConfig(dtype="float32"))
    found = logits_of(model.decoder, [SEQUENCES[2]], [[5]])
    assert_close(found[0], oracle.logits(SEQUENCES[2]))


def test_deepseek3_leaves_out_layers_that_propose_tokens(tmp_path: Path) -> None:
    oracle = Oracle(make_family_checkpoint(tmp_path, "deepseek_v3"))
    path = tmp_path / "model.safetensors"
    weights = {**load_file(path), "model.layers.2.eh_proj.weight": torch.ones(48, 96)}
    save_file(weights, path)
    model = load_model(tmp_path, EngineConfig(dtype="float32"))
    found = logits_of(model.decoder, [SEQUENCES[2]], [[5]])
    assert_close(found[0], oracle.logits(SEQUENCES[2]))
    weights["model.layers.3.eh_proj.weight"] = torch.ones(48, 96)
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.eh_proj\.weight"):
        load_model(tmp_path, EngineConfig(dtype="float32"))


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_latents_are_expanded_for_enough_new_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, schedule: str
) -> None:
    """Some sequences of a step are, beside others that are not, where torch attends to them."""
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    monkeypatch.setattr(latent_attention, "MIN_EXPANDED", 17)
    expanded = []
    prefill = latent_attention.mla_prefill
    monkeypatch.setattr(
        latent_attention,
        "mla_prefill",
        lambda *args, **options: expanded.append(args) or prefill(*args, **options),
    )
    oracle = Oracle(make_family_checkpoint(tmp_path, family))
    found = logits_of(oracle.model.decoder, SEQUENCES, SCHEDULES[schedule])
    for logits, tokens in zip(found, SEQUENCES, strict=True):
        assert_close(logits, oracle.logits(tokens))
    assert expanded


def test_a_long_prompt_of_latents_in_chunks(tmp_path: Path) -> None:
    oracle = Oracle(make_family_checkpoint(tmp_path, "deepseek_v3"))
    tokens = [random_tokens(500), random_tokens(140)]
    found = logits_of(oracle.model.decoder, tokens, [[200, 0], [140, 3], [160, 137]])
    for logits, each in zip(found, tokens, strict=True):
        assert_close(logits, oracle.logits(each))


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_a_latent_is_cached_once_for_all_heads(tmp_path: Path, family: str) -> None:
    model = load_model(make_family_checkpoint(tmp_path, family), EngineConfig(dtype="bfloat16"))
    shape, latent = model.description, model.description.latent
    assert latent is not None
    per_token = shape.num_layers * (latent.kv_rank + latent.rope_dim) * 2
    assert shape.kv_bytes_per_token(model.dtype) == per_token == 2 * (32 + 8) * 2
    kv_cache = KvCache(shape.kv_layout(8, model.dtype), 3, CPU)
    assert kv_cache.tensor.nbytes == 3 * 8 * per_token
