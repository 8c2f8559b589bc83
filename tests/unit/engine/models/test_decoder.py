from pathlib import Path
from typing import Any

import pytest
import torch
from support.held_bytes import held_bytes
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.weights.num_bytes import weight_bytes
from pagoda_kernels import plan_attention
from pagoda_kernels.native import packed_linear

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {}),
        ("qwen3_moe", {}),
        ("qwen3_moe", {"tie_word_embeddings": True, "num_hidden_layers": 5}),
        ("mixtral", {}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_take_what_the_description_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    overrides: dict[str, Any],
    dtype: str,
) -> None:
    monkeypatch.setattr(packed_linear, "can_pack", lambda *_: False)  # that rounds sizes up
    folder = make_tiny_checkpoint(tmp_path, family, **overrides)
    model = load_model(folder, EngineConfig(dtype=dtype, max_model_len=100))
    assert weight_bytes(model.description, model.dtype) == held_bytes(model.decoder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kv_of_a_token_takes_what_the_description_says(
    tiny_model: LoadedModel, dtype: torch.dtype
) -> None:
    shape = tiny_model.description
    layout = shape.kv_layout(16, dtype)
    assert shape.kv_bytes_per_token(dtype) * 16 == layout.block_bytes


def run(decoder: Decoder, num_logits: int, on_layer: Any = None) -> tuple[torch.Tensor, KvCache]:
    """Compute 9 tokens of one sequence."""
    shape = decoder.description
    layout = shape.kv_layout(16, torch.float32)
    kv_cache = KvCache(layout, 1, CPU)
    plan = plan_attention(
        seqlens_q=[9], context_lens=[9], block_tables=[[0]], block_size=16, device=CPU
    )
    rows = torch.arange(9 - num_logits, 9)
    hook = None if on_layer is None else lambda layer: on_layer(layer, kv_cache)
    with torch.inference_mode():
        logits = decoder.forward(torch.arange(9), torch.arange(9), plan, kv_cache, rows, hook)
    return logits, kv_cache


@pytest.mark.parametrize("num_logits", [0, 1])
def test_a_layer_is_reported_once_its_kv_is_written(
    tiny_model: LoadedModel, num_logits: int
) -> None:
    seen = []

    def on_layer(layer: int, kv_cache: KvCache) -> None:
        seen.append(layer)
        is_written = [bool(kv_cache.tensor[:, i, 0, :9].all()) for i in range(3)]
        assert is_written == [i <= layer for i in range(3)]

    run(tiny_model.decoder, num_logits, on_layer)
    assert seen == [0, 1, 2]


def test_reporting_layers_changes_nothing(tiny_model: LoadedModel) -> None:
    logits, kv_cache = run(tiny_model.decoder, 9)
    reported, reported_cache = run(tiny_model.decoder, 9, lambda layer, kv_cache: None)
    assert torch.equal(reported, logits)
    assert torch.equal(reported_cache.tensor, kv_cache.tensor)


def test_without_logits_kv_is_written_all_the_same(tiny_model: LoadedModel) -> None:
    logits, kv_cache = run(tiny_model.decoder, 0)
    assert logits.shape == (0, tiny_model.vocab_size)
    assert torch.equal(kv_cache.tensor, run(tiny_model.decoder, 9)[1].tensor)
