"""What docs/howto/gpu.md computes is what the code computes."""

import json
import re
from pathlib import Path

import torch

from pagoda_cli.all_settings import all_settings
from pagoda_decode.config import DecodeSettings
from pagoda_engine.cache.copy_lanes import DEVICE_CHUNK_BYTES, NUM_LANES
from pagoda_engine.models.families.registry import read_description
from pagoda_engine.models.weights.num_bytes import weight_bytes
from pagoda_engine.start_up.memory_budget import GIB, MemoryBudget
from pagoda_engine.start_up.pool_plan import PoolPlanner
from pagoda_engine.start_up.profile_memory import GRAPH_BYTES
from pagoda_engine.start_up.step_limits import CUDA_LIMITS
from pagoda_engine.step.decode_graphs import chosen_sizes
from pagoda_prefill.config import PrefillSettings
from pagoda_runtime.configuration.names import variable_names
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_worker.engine_options import engine_options
from pagoda_worker.settings import WorkerSettings
from pagoda_worker.telemetry.metrics import STEP_PARTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/howto/gpu.md").read_text()
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
TOKEN_BYTES = (2 * 4096 + 3 * 14336) * 2  # the widest layer
ROW_BYTES = 128256 * (2 + 3 * 4)


def budget_and_planner(
    tmp_path: Path, settings: WorkerSettings, share: float
) -> tuple[MemoryBudget, PoolPlanner]:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    description = read_description(tmp_path / "config.json")
    weights, context = weight_bytes(description, torch.bfloat16), GIB // 2
    tokens, rows = CUDA_LIMITS.max_num_batched_tokens, CUDA_LIMITS.max_num_seqs
    budget = MemoryBudget(
        device="GPU of 80 GiB",
        total_bytes=80 * GIB,
        free_bytes=80 * GIB - weights - context,
        utilization=share,
        weight_bytes=weights,
        other_bytes=context,
        activation_bytes=tokens * TOKEN_BYTES + rows * ROW_BYTES,
        graph_bytes=rows * (TOKEN_BYTES + ROW_BYTES) + len(chosen_sizes(rows)) * GRAPH_BYTES,
        copy_bytes=NUM_LANES * DEVICE_CHUNK_BYTES,
        largest_step=str(CUDA_LIMITS),
    )
    block_bytes = description.kv_bytes_per_token(torch.bfloat16) * settings.block_size
    options = engine_options(settings, CommonSettings(dtype="bfloat16"))
    return budget, PoolPlanner(options, block_bytes=block_bytes, model_limit=131072)


def test_the_arithmetic_of_prefill(tmp_path: Path) -> None:
    budget, planner = budget_and_planner(tmp_path, PrefillSettings(), 0.35)
    pool = planner.plan(budget)

    assert planner.explain(pool, budget) in PAGE
    assert f"the {planner.max_model_len(pool)} tokens that fit" in PAGE


def test_the_tokens_of_decode(tmp_path: Path) -> None:
    budget, planner = budget_and_planner(tmp_path, DecodeSettings(), 0.55)

    assert f"whose 0.55 hold {planner.plan(budget).num_tokens} tokens" in PAGE


def test_every_variable_exists() -> None:
    files = [ROOT / "compose.yaml", *sorted((ROOT / "deploy").glob("compose.*.yaml"))]
    known = set(re.findall(r"\$\{(PAGODA_\w+)", "".join(path.read_text() for path in files)))
    for model in all_settings().values():
        known.update(variable_names(model).values())
    prefixes = {"PAGODA_PREFILL_", "PAGODA_DECODE_"}

    assert set(re.findall(r"PAGODA_\w+", PAGE)) - known - prefixes == set()


def test_every_step_part_is_explained() -> None:
    for part in STEP_PARTS:
        assert f"`{part}`" in PAGE


def test_the_shares_are_those_of_compose() -> None:
    shares = [
        re.search(rf"{role}_GPU_MEMORY_UTILIZATION:-([\d.]+)", (ROOT / "compose.yaml").read_text())
        for role in ("PREFILL", "DECODE")
    ]
    prefill, decode = (share[1] for share in shares if share)

    assert f"prefill has {prefill} of its memory, decode {decode}" in PAGE
    assert f"prefill has {prefill} of it, decode {decode}" in (ROOT / "README.md").read_text()
