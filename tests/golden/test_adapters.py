"""Adapters against PEFT in float32: logits close, greedy tokens equal, in whatever batch.

Saved by PEFT itself, so that its names and its configuration are what is read.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.engine_driver import EngineDriver
from support.family_checkpoints import make_family_checkpoint
from support.greedy_oracle import GreedyOracle
from support.random_tokens import random_tokens
from support.tiny_checkpoints import FAMILIES, make_tiny_checkpoint

from pagoda_engine import (
    Adapter,
    AdapterSlots,
    AdapterTable,
    EngineConfig,
    LoadedModel,
    SamplingParams,
    load_model,
    read_adapter,
)
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_kernels import plan_attention
from pagoda_kernels.native import packed_linear

MAX_TOKENS = 64
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
SHARED = random_tokens(40)
PROMPTS = [SHARED + random_tokens(9), random_tokens(5), SHARED + random_tokens(24)]
MODULES = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "qwen3": ["q_proj", "v_proj", "down_proj"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gpt2": ["c_attn", "mlp.c_proj"],
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
    "qwen3_moe": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gemma4_small": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gemma4_moe": ["q_proj", "k_proj", "o_proj", "mlp.down_proj"],
    "mistral3_with_images": ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"],
}
pytestmark = [
    pytest.mark.slow,
    # Of transformers, about a name that PEFT asks for.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
]


@dataclass
class Case:
    """One model with two adapters, as PEFT and as the engine load them; None: no adapter."""

    model: LoadedModel
    table: AdapterTable
    adapters: dict[str, Adapter]
    references: dict[str | None, GreedyOracle]

    def tokens(self, name: str | None, prompt: list[int], guess: list[int]) -> list[int]:
        return self.references[name].greedy(prompt, MAX_TOKENS, guess=guess)

    def digest(self, name: str | None) -> bytes:
        return b"" if name is None else self.adapters[name].digest

    def driver(self, **fields: object) -> EngineDriver:
        values = {"block_size": 8, "num_blocks": 128, "dtype": "float32", "max_model_len": 512}
        driver = EngineDriver(self.model, EngineConfig(**{**values, **fields}), adapters=self.table)
        for adapter in self.adapters.values():
            driver.engine.load_adapter(adapter)
        return driver

    def add(self, driver: EngineDriver, name: str | None, prompt: list[int], suffix: str) -> None:
        digest = self.digest(name)
        root = digest or bytes(16)
        driver.add(f"{name}-{suffix}", prompt, sampling=GREEDY, adapter=digest, cache_root=root)


@pytest.fixture(scope="module", params=MODULES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(request.param, tmp_path_factory.mktemp(request.param))


def make_case(family: str, tmp_path: Path) -> Case:
    from peft import LoraConfig, get_peft_model  # it imports triton: see kernels/conftest.py

    make = make_tiny_checkpoint if family in FAMILIES else make_family_checkpoint
    folder = make(tmp_path / "base", family)
    references: dict[str | None, GreedyOracle] = {None: GreedyOracle(folder)}
    names = {}
    for seed, (name, use_rslora, rank) in enumerate([("one", False, 4), ("two", True, 6)]):
        torch.manual_seed(seed)
        base = GreedyOracle(folder)
        config = LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            use_rslora=use_rslora,
            target_modules=MODULES[family][seed:],
            fan_in_fan_out=family == "gpt2",
            task_type="CAUSAL_LM",
        )
        tuned = get_peft_model(base.reference, config)
        for key, value in tuned.named_parameters():
            if "lora_B" in key:  # PEFT begins with zeros
                torch.nn.init.normal_(value, std=0.05)
        tuned.save_pretrained(tmp_path / name)
        base.reference = tuned.eval()
        references[name] = base
        names[name] = tmp_path / name
    model = load_model(folder, EngineConfig(dtype="float32", max_model_len=512))
    table = AdapterTable(AdapterSlots(model.decoder, num_slots=3, max_rank=6))
    adapters = {
        name: read_adapter(path, model.description, max_rank=6) for name, path in names.items()
    }
    return Case(model, table, adapters, references)


def all_logits(case: Case, name: str | None, tokens: list[int], chunks: list[int]) -> torch.Tensor:
    """Run tokens of one sequence in chunks, beside as many of the model alone."""
    shape = case.model.description
    layout = shape.kv_layout(8, torch.float32)
    kv_cache = KvCache(layout, 32, torch.device("cpu"))
    case.driver()  # loads them
    slot = -1 if name is None else case.table.slot_of(case.digest(name))
    logits, start = [], 0
    with torch.inference_mode():
        for chunk in chunks:
            plan = plan_attention(
                seqlens_q=[chunk, chunk],
                context_lens=[start + chunk] * 2,
                block_tables=[list(range(15)), list(range(16, 31))],
                block_size=8,
                device=torch.device("cpu"),
            )
            ids = torch.tensor(tokens[start : start + chunk] * 2)
            positions = torch.arange(start, start + chunk).repeat(2)
            slots = torch.tensor([slot] * chunk + [-1] * chunk, dtype=torch.int32)
            found = case.model.decoder.forward(ids, positions, plan, kv_cache, None, adapters=slots)
            logits.append(found[:chunk])
            start += chunk
    return torch.cat(logits)


@pytest.mark.parametrize("chunks", [[90], [33, 1, 8, 47, 1]], ids=["90", "mixed"])
def test_logits_are_close(case: Case, chunks: list[int]) -> None:
    tokens = random_tokens(90)
    for name, oracle in case.references.items():
        with torch.no_grad():
            expected = oracle.reference(torch.tensor([tokens])).logits[0]
        found = all_logits(case, name, tokens, chunks)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("max_num_batched_tokens", [512, 13])
def test_greedy_tokens_of_a_mixed_batch(case: Case, max_num_batched_tokens: int) -> None:
    driver = case.driver(max_num_batched_tokens=max_num_batched_tokens)
    for i, prompt in enumerate(PROMPTS):
        for name in case.references:
            case.add(driver, name, prompt, str(i))
    found = {key: value.token_ids for key, value in driver.run().items()}
    for i, prompt in enumerate(PROMPTS):
        for name in case.references:
            tokens = found[f"{name}-{i}"]
            assert tokens == case.tokens(name, prompt, tokens)
        # Or an adapter that is left out would go unseen.
        assert len({tuple(found[f"{name}-{i}"]) for name in case.references}) == 3


def test_greedy_tokens_of_the_adapter_merged_into_its_base(tmp_path: Path) -> None:
    import peft

    case = make_case("llama", tmp_path)
    driver = case.driver()
    case.add(driver, "one", PROMPTS[0], "x")
    tuned = case.references["one"].reference
    assert isinstance(tuned, peft.PeftModel)
    merged = GreedyOracle(tmp_path / "base")
    merged.reference = tuned.merge_and_unload()
    assert driver.run()["one-x"].token_ids == merged.greedy(PROMPTS[0], MAX_TOKENS)


def test_products_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer, as on processors without the native operators and on GPUs."""
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    case = make_case("phi3", tmp_path)
    assert not case.model.decoder.is_native
    driver = case.driver(max_num_batched_tokens=13)
    for name in case.references:
        case.add(driver, name, PROMPTS[0], "x")
    found = driver.run()
    for name in case.references:
        tokens = found[f"{name}-x"].token_ids
        assert tokens == case.tokens(name, PROMPTS[0], tokens)
