import dataclasses
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engine_driver import hash_block
from support.engine_options import make_options
from support.family_checkpoints import make_family_checkpoint
from support.quantised_checkpoints import gptq, quantised_pair
from support.tiny_checkpoints import FAMILIES, make_tiny_checkpoint

from pagoda_engine import Engine, LoadedModel, MemoryBudgetError
from pagoda_engine.errors import CheckpointError
from pagoda_engine.models.families.registry import read_description
from pagoda_engine.start_up import load_engine as module
from pagoda_engine.start_up.load_engine import load_engine, step_limits_of
from pagoda_engine.start_up.phases import StartUp
from pagoda_engine.start_up.step_limits import CUDA_LIMITS
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library

GIB = 2**30


def load(folder: Path, evicted: list[bytes] | None = None, **fields: Any) -> Engine:
    phases: list[str] = []
    engine = load_engine(
        folder,
        make_options(**{"num_blocks": 64, "device": "cpu", "dtype": "float32", **fields}),
        hash_block=hash_block,
        on_evict=lambda block_hash, _: ([] if evicted is None else evicted).append(block_hash),
        start_up=StartUp(phases.append),
    )
    begun = {phase.split(" ")[0] for phase in phases}
    assert begun - {"compiling"} == {"loading", "allocating", "warming"}
    return engine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path)


def test_the_start_leaves_nothing_behind(folder: Path) -> None:
    evicted: list[bytes] = []
    engine = load(folder, evicted)

    assert engine.num_free_blocks == 64
    assert not engine.has_work()
    assert evicted == []
    assert engine.step().stored == ()


def test_who_waits_hears_that_operators_are_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "must_be_compiled", lambda: True)
    phases: list[str] = []
    load_engine(
        folder,
        make_options(num_blocks=64, device="cpu", dtype="float32"),
        hash_block=hash_block,
        on_evict=lambda *_: None,
        start_up=StartUp(phases.append),
    )

    assert phases[0] == "compiling native operators"


def test_a_worker_of_a_gpu_compiles_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "native_library", lambda: pytest.fail("it is looked for"))

    assert module._share_processors(make_options(device="cuda", processor_table="table")) is None


@pytest.mark.parametrize(("asked", "wanted"), [(0, 2), (4, 4)])
def test_threads_are_as_many_as_a_quota_has_time_for_unless_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: int, wanted: int
) -> None:
    monkeypatch.setattr(module, "num_processors", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        load(folder, num_threads=asked)
        assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_layers_of_unlike_heads_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_native: bool, kv_cache_dtype: str
) -> None:
    if not is_native:
        monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)
    folder = make_family_checkpoint(tmp_path, "gemma4_small")
    engine = load(folder, num_blocks=0, kv_cache_bytes=2**20, kv_cache_dtype=kv_cache_dtype)

    layout = engine.kv_cache.layout
    assert layout.mixed is not None
    assert engine.kv_cache.num_blocks == 2**20 // layout.block_bytes
    num_wide, num_narrow, item = 2, 4, 1 if kv_cache_dtype == "int8" else 4
    needed = layout.block_size * 2 * (num_wide * 24 + num_narrow * 16) * item
    assert needed <= layout.block_bytes < 1.3 * needed  # the last part has room for two layers
    assert engine.kv_cache.tensor.nbytes == engine.kv_cache.num_blocks * layout.block_bytes


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("fields", [{}, {"block_size": 256, "max_model_len": 64}])
def test_weights_without_finite_logits_are_never_ready(
    folder: Path, value: float, fields: dict[str, int]
) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.self_attn.o_proj.weight"][:] = value
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match="not finite: the files are damaged"):
        load(folder, **fields)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocab_size", 2**31 - 1, "embed_tokens.weight is .*the configuration says"),
        ("intermediate_size", 2**31 - 1, "the configuration says"),
        ("eos_token_id", [2**70], "eos_token_id is .*must be token ids"),
    ],
)
def test_a_size_that_only_the_configuration_claims_takes_no_memory(
    folder: Path, field: str, value: object, message: str
) -> None:
    (folder / "generation_config.json").unlink()
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))

    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_limits_that_nobody_set_are_those_of_a_cpu(folder: Path) -> None:
    config = load(folder).config

    assert (config.max_num_seqs, config.max_num_batched_tokens) == (64, 512)
    assert (config.num_layer_groups, config.graph_batch_sizes) == (1, None)
    assert config.max_num_waiting == 256 + 64


def test_limits_that_are_set_win(folder: Path) -> None:
    settings = {"max_num_seqs": 3, "max_num_batched_tokens": 5, "graph_batch_sizes": (1, 2)}
    config = load(folder, **settings, num_layer_groups=2, enforce_eager=True).config

    assert (config.max_num_seqs, config.max_num_batched_tokens) == (3, 5)
    assert (config.num_layer_groups, config.graph_batch_sizes) == (2, (1, 2))
    assert config.enforce_eager


@pytest.mark.parametrize(
    ("family", "dtype", "speculation", "expected"),
    [
        ("llama", "float32", "auto", "ngram"),
        ("llama", "float32", "off", "off"),
        ("qwen3_moe", "float32", "auto", "ngram"),
        ("gpt_neox", "float32", "auto", "ngram"),
        ("gpt_neox", "float16", "auto", "off"),  # torch's products depend on the batch
        ("gpt_neox", "float16", "ngram", "ngram"),
    ],
)
def test_speculation_is_on_by_itself_only_where_it_changes_no_bit(
    tmp_path: Path, family: str, dtype: str, speculation: str, expected: str
) -> None:
    make = make_tiny_checkpoint if family in FAMILIES else make_family_checkpoint
    engine = load(make(tmp_path, family), dtype=dtype, speculation=speculation)
    if expected != speculation:
        assert engine.model.decoder.is_batch_invariant == (expected == "ngram")
    assert engine.config.speculation == expected


@pytest.mark.parametrize("speculation", ["auto", "ngram"])
def test_a_draft_has_a_place_in_the_plan_and_turns_speculation_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, speculation: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", "qwen3_moe")
    draft = make_tiny_checkpoint(tmp_path / "draft")
    with caplog.at_level(logging.INFO):
        engine = load_engine(
            folder,
            make_options(num_blocks=64, device="cpu", dtype="float32", speculation=speculation),
            hash_block=hash_block,
            on_evict=lambda block_hash, block_id: None,
            draft_folder=draft,
            start_up=StartUp(lambda phase: None),
        )
    assert engine.config.speculation == "ngram"
    assert engine.drafter is not None
    assert engine.drafter.num_free_blocks == 64
    assert engine.drafter.time.base > 0.0
    text = caplog.text
    assert f"a draft model proposes tokens: {draft}, LlamaForCausalLM" in text
    # Two of K and V, three layers, two heads of 16, four bytes each.
    assert "KV of the draft model beside it 0.75 MiB: 0.75 KiB per token" in text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_draft_without_finite_logits_is_refused(
    folder: Path, tmp_path: Path, value: float
) -> None:
    draft = make_tiny_checkpoint(tmp_path / "draft")
    path = draft / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.self_attn.o_proj.weight"][:] = value
    save_file(tensors, path, metadata={"format": "pt"})

    with pytest.raises(CheckpointError, match=f"^{draft}: with these .* not finite"):
        load_engine(
            folder,
            make_options(num_blocks=64, device="cpu", dtype="float32"),
            hash_block=hash_block,
            on_evict=lambda block_hash, block_id: None,
            draft_folder=draft,
            start_up=StartUp(lambda phase: None),
        )


def test_a_pool_beyond_the_memory_is_refused_before_it_is_taken(folder: Path) -> None:
    with pytest.raises(MemoryBudgetError, match=r"a KV pool of .*: the host has "):
        load(folder, num_blocks=10**12)


def test_without_a_draft_there_is_nothing_of_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        engine = load(folder)
    assert engine.drafter is None
    assert "draft" not in caplog.text


def test_the_arithmetic_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load(folder)

    lines = [record.getMessage() for record in caplog.records]
    assert sum("KV pool" in line for line in lines) == 1
    assert any("64 blocks of 16 tokens" in line for line in lines)


def test_it_says_what_codes_will_take(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not what they would take once widened, where they are kept."""
    coded, dense = quantised_pair(make_tiny_checkpoint(tmp_path / "model"), gptq())
    said = []
    for each in (coded, dense):
        with caplog.at_level(logging.INFO):
            load(each, dtype="bfloat16")
        found = re.findall(r"weights will take ([\d.]+) MiB", caplog.text)
        said.append(float(found[0]))
        caplog.clear()
    kept = native_library() is not None
    assert said[0] < 0.6 * said[1] if kept else said[0] == said[1]


def test_a_sequence_is_as_long_as_the_pool_where_no_limit_is_set(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(folder, num_blocks=8)

    assert engine.max_model_len == 8 * 16
    assert "128 tokens at most" in caplog.text


def test_a_limit_that_does_not_fit_is_refused_before_a_weight_is_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    with pytest.raises(MemoryBudgetError, match="max_model_len 512"):
        load(folder, num_blocks=8, max_model_len=512)


def test_a_pool_without_room_for_a_block_says_what_it_needs(folder: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="`kv_cache_bytes`"):
        load(folder, num_blocks=0, kv_cache_bytes=100)


class SmallGpu:
    """A GPU as the driver reports it; the model runs on the CPU all the same."""

    name = "gpu"

    def __init__(self, total: int) -> None:
        self._total = total

    def total_and_free(self) -> tuple[int, int]:
        return self._total, self._total // 2

    def reserved(self) -> int:
        return self._total // 4

    def peak(self) -> int:
        return self._total // 4 + 1000

    def trim(self) -> None:
        pass


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> "pytest.MonkeyPatch":
    """Decisions for a GPU, where the only thing that is missing is the GPU."""
    monkeypatch.setattr(module, "resolve_device", lambda _: torch.device("cuda"))
    real = module.load_model

    def load_on_cpu(folder: Path, config: module.EngineConfig, **options: object) -> LoadedModel:
        return real(folder, dataclasses.replace(config, device="cpu"), **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "load_model", load_on_cpu)
    return monkeypatch


def test_on_a_gpu_the_pool_is_what_the_profile_leaves(
    folder: Path, on_gpu: pytest.MonkeyPatch
) -> None:
    on_gpu.setattr(module, "CudaMemory", lambda _: SmallGpu(2 * GIB))
    phases: list[str] = []
    options = make_options(device="cuda", dtype="float32", graph_batch_sizes=(1,))
    engine = load_engine(
        folder,
        options,
        hash_block=hash_block,
        on_evict=lambda *_: None,
        start_up=StartUp(phases.append),
    )

    config = engine.config
    # 0.9 of 2 GiB, less a quarter each for weights and the rest; the step, a graph, copies
    later = 1000 + (1000 + 16 * 2**20) + 64 * 2**20
    assert config.num_blocks == (int(2 * GIB * 0.9) - GIB - later) // engine.kv_cache.block_bytes
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (256, 8192)
    assert config.num_layer_groups == 4
    begun = [phase for phase in phases if not phase[-1].isdigit() and not phase.endswith("%")]
    assert begun == [
        "loading weights",
        "warming up",
        "profiling memory",
        "allocating KV",
        "capturing graphs",
        "warming up",
    ]


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    folder: Path, on_gpu: pytest.MonkeyPatch
) -> None:
    on_gpu.setattr(module, "CudaMemory", lambda _: SmallGpu(2**18))
    (folder / "model.safetensors").unlink()

    with pytest.raises(MemoryBudgetError, match=r"weights +-0\.00 GiB"):
        load(folder, num_blocks=0, device="cuda")


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("load_model", "loading weights"),
        ("measure_budget", "profiling memory"),
        ("Engine", "allocating KV"),
    ],
)
def test_memory_that_runs_out_is_no_crash(
    folder: Path, on_gpu: pytest.MonkeyPatch, name: str, phase: str
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    on_gpu.setattr(module, "CudaMemory", lambda _: SmallGpu(2 * GIB))
    on_gpu.setattr(module, name, out_of_memory)

    with pytest.raises(MemoryBudgetError, match="`max_num_batched_tokens`") as raised:
        load_engine(
            folder,
            make_options(device="cuda", dtype="float32", max_num_seqs=9),
            hash_block=hash_block,
            on_evict=lambda *_: None,
            start_up=StartUp(lambda _: None),
        )
    assert f"the memory ran out while {phase}" in str(raised.value)
    assert "8192 tokens of 9 sequences" in str(raised.value)


@pytest.mark.parametrize("room_gib", [8, 60])
def test_an_8b_model_takes_the_largest_step(tmp_path: Path, room_gib: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))

    assert step_limits_of(read_description(path), torch.bfloat16, room_gib * GIB) == CUDA_LIMITS


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
    "torch_dtype": "bfloat16",
}
