"""The whole decoder on its device path: Triton's kernels give what the CPU's give, without a wait.

On CUDA the forward is also captured in a graph and replayed.
"""

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.mixed_heads import LayerHeads
from pagoda_engine.models import latent_attention
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import (
    DecoderDescription,
    ExpertsDescription,
    LatentDescription,
    LayerInputsDescription,
)
from pagoda_engine.models.rope_scaling import RopeDescription
from pagoda_engine.models.weights.names import WeightNames
from pagoda_engine.scheduler.sequence import NULL_BLOCK
from pagoda_kernels import ClampedSwiglu, plan_attention

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK_SIZE = 16
DENSE = DecoderDescription(
    architecture="Qwen3MoeForCausalLM",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    max_position_embeddings=128,
    norm_eps=1e-6,
    rope=RopeDescription(),
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
    qk_norm="head",
    sliding_windows=(None, 24, None),
    tie_word_embeddings=False,
    dtype="float32",
)
SPARSE = dataclasses.replace(
    DENSE, experts=ExpertsDescription(6, 2, 48, norm_topk_prob=True, layers=frozenset({0, 2}))
)
# As Gemma: norms around both parts, soft caps, rotations by layer.
SANDWICH = dataclasses.replace(
    DENSE,
    norm="rms_unit_offset",
    activation="gelu_tanh",
    attention_soft_cap=5.0,
    logits_soft_cap=3.0,
    embedding_multiplier=8.0,
    residual_multiplier=0.5,
    layer_ropes=(RopeDescription(), RopeDescription(theta=100.0, rotary_factor=0.5), None),
    names=WeightNames(attention_out_norm="a", feed_forward_out_norm="b"),
)
# As Command R: both parts read one LayerNorm, heads have norms of their own.
PARALLEL = dataclasses.replace(
    DENSE,
    norm="layer",
    is_parallel=True,
    qk_norm="each_head",
    rope=RopeDescription(is_interleaved=True),
    names=WeightNames(feed_forward_in_norm=""),
)
# As GPT-2, and Q and K of OLMo: learned positions, no gate, norms over all heads at once.
LEARNED = dataclasses.replace(
    DENSE,
    norm="layer",
    norm_bias=True,
    qk_norm="joined",
    qkv_clip=2.0,
    rope=None,
    is_gated=False,
    activation="gelu",
    names=WeightNames(positions="positions"),
)
SHARED = dataclasses.replace(
    SPARSE, experts=dataclasses.replace(SPARSE.experts, shared_size=40), qk_norm="none"
)
# As DeepSeek V3: latents, a bias for the choice of experts in groups, an expert for every token.
LATENT = dataclasses.replace(
    DENSE,
    head_dim=48,
    rope=RopeDescription(is_interleaved=True),
    latent=LatentDescription(24, 32, nope_dim=32, rope_dim=16, value_dim=24, norm_eps=1e-6),
    experts=ExpertsDescription(
        6,
        2,
        48,
        norm_topk_prob=True,
        layers=frozenset({1, 2}),
        shared_size=40,
        scoring="sigmoid",
        num_groups=3,
        top_groups=2,
        routed_scale=2.5,
        is_router_float32=True,
    ),
    names=WeightNames(latents=("q", "kv"), router_bias="bias", shared_expert_gate=""),
)
# As gpt-oss: sinks, biases everywhere, a gate with bounds, experts in one tensor.
SINKS = dataclasses.replace(
    DENSE,
    output_bias=True,
    qk_norm="none",
    experts=dataclasses.replace(
        SPARSE.experts,
        layers=frozenset({0, 1, 2}),
        has_bias=True,
        gate=ClampedSwiglu(limit=0.7, alpha=1.702),
    ),
    names=WeightNames(sinks="sinks", expert_gate_up=("both",), experts_layout="stacked"),
)
# As Gemma 4: heads of two sizes of which the wide ones turn in part, V that is K, layers that read
# others' KV, that are told of tokens, and that have experts beside a dense part.
UNLIKE = dataclasses.replace(
    DENSE,
    qkv_bias=False,
    layer_heads=tuple(LayerHeads(*each) for each in ((2, 16), (1, 64), (2, 16))),
    sliding_windows=(24, None, 24),
    layer_ropes=(
        RopeDescription(theta=100.0),
        RopeDescription(rope_type="proportional", rotary_factor=0.25),
        RopeDescription(theta=100.0),
    ),
    k_is_v_layers=frozenset({1}),
    is_v_normed=True,
    kv_sources=(0, 1, 0),
    layer_inputs=LayerInputsDescription(100, 24),
    layer_intermediate_sizes=(96, 96, 160),
    experts=dataclasses.replace(
        SPARSE.experts, layers=frozenset({0, 1, 2}), gate="gelu_tanh", is_beside_dense=True
    ),
    names=WeightNames(
        attention_out_norm="a",
        feed_forward_out_norm="b",
        layer_scalar="scalar",
        router_norm="scale",
        expert_scales="scales",
        experts_in_norm="c",
        experts_out_norm="d",
        dense_out_norm="e",
        expert_gate_up=("both",),
        experts_layout="stacked_rows",
    ),
)
# Of which some layers have windows: blocks can be in parts.
UNLIKE_WINDOWED = dataclasses.replace(UNLIKE, kv_sources=(), sliding_windows=(24, None, 24))
WINDOWED = dataclasses.replace(DENSE, sliding_windows=(24, None, 24))
RECIPES = {
    "dense": DENSE,
    "sparse": SPARSE,
    "sandwich": SANDWICH,
    "parallel": PARALLEL,
    "learned": LEARNED,
    "shared": SHARED,
    "latent": LATENT,
    "sinks": SINKS,
    "unlike": UNLIKE,
}


class RandomWeights:
    """The same on every device."""

    def __init__(self, device):
        self.device = device
        self.generator = torch.Generator().manual_seed(1)

    def take(self, parts, shape, dtype=None):
        drawn = torch.randn(shape, generator=self.generator)
        drawn = 1 + 0.2 * drawn if len(shape) == 1 else drawn * 1.5 * shape[-1] ** -0.5
        return drawn.to(self.device)


class Step:
    """One step of three sequences, and all that it needs on a device."""

    def __init__(self, description, device, seqlens_q, context_lens):
        self.decoder = build_decoder(
            description, RandomWeights(device), max_positions=128, device=device
        )
        layout = description.kv_layout(BLOCK_SIZE, torch.float32)
        generator = torch.Generator().manual_seed(2)
        self.kv_cache = KvCache(layout, 30, device)
        self.kv_cache.tensor.copy_(torch.randn(self.kv_cache.tensor.shape, generator=generator))
        self.block_tables = [list(range(first, first + 8)) for first in (20, 4, 12)]
        self.batch = plan_attention(
            seqlens_q=seqlens_q,
            context_lens=context_lens,
            block_tables=self.block_tables,
            block_size=BLOCK_SIZE,
            device=device,
        )
        positions = [
            torch.arange(end - new, end) for new, end in zip(seqlens_q, context_lens, strict=True)
        ]
        self.positions = torch.cat(positions).to(device)
        self.token_ids = torch.randint(0, 100, self.positions.shape, generator=generator).to(device)
        self.logit_rows = torch.tensor(seqlens_q).cumsum(0).sub(1).to(device)

    def forward(self):
        return self.decoder.forward(
            self.token_ids, self.positions, self.batch, self.kv_cache, self.logit_rows
        )


class StepInParts(Step):
    """The same over blocks in parts; NaN lies wherever a sequence holds none."""

    def __init__(self, description, device, seqlens_q, context_lens):
        super().__init__(description, device, seqlens_q, context_lens)
        whole, layout = self.kv_cache, description.kv_layout(BLOCK_SIZE, torch.float32, "", 128)
        self.kv_cache = KvCache(layout, whole.num_blocks, device)
        self.kv_cache.tensor.fill_(float("nan"))
        first_seen = [
            max(0, end - new + 1 - layout.groups.window) // BLOCK_SIZE
            for new, end in zip(seqlens_q, context_lens, strict=True)
        ]
        self.held = []  # of each layer the blocks that are there, and their places
        for layer, (group, _) in enumerate(layout.groups.places):
            ids = [
                block_id
                for table, first in zip(self.block_tables, first_seen, strict=True)
                for block_id in table[first if group else 0 :]
            ]
            places = [group * whole.num_blocks + block_id for block_id in ids]
            for ours, theirs in zip(self.kv_cache.layer(layer), whole.layer(layer), strict=True):
                ours[places] = theirs[ids]
            self.held.append((ids, places))
        tables = np.array(self.block_tables, dtype=np.int32)
        is_held = np.arange(tables.shape[1]) >= np.array(first_seen)[:, None]
        self.batch = plan_attention(
            seqlens_q=seqlens_q,
            context_lens=context_lens,
            block_tables=self.block_tables,
            block_size=BLOCK_SIZE,
            device=device,
            other_tables=[
                np.where(is_held, tables + group * whole.num_blocks, NULL_BLOCK).astype(np.int32)
                for group in range(1, layout.num_parts)
            ],
        )


def assert_close(got, want):
    """Three layers of fp32 apart in their order of summation."""
    error = (got.double().cpu() - want.double().cpu()).norm() / want.double().cpu().norm()
    assert error < 1e-4, f"relative error {error:.2e}"


class NoLooking(TorchDispatchMode):
    """Refuses operators by which the host looks at values, as far as they reach the dispatcher."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero"), func
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def nobody_waits():
    """Fail whatever waits for the device."""
    if DEVICE.type == "cpu":
        with NoLooking():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def on_device(monkeypatch):
    """Without CUDA send CPU tensors to Triton's kernels, which then are interpreted."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True), raising=False)
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())


DECODES, MIXED = ([1, 1, 1], [40, 100, 7]), ([5, 1, 19], [21, 33, 19])


@pytest.mark.parametrize(
    ("name", "lengths"),
    [(name, MIXED) for name in RECIPES]
    + [(name, DECODES) for name in ("dense", "sparse", "latent", "unlike")],
    ids=lambda value: value if isinstance(value, str) else f"{sum(value[0])}-tokens",
)
@torch.inference_mode()
def test_device_path_is_right_and_never_waits(request, name, lengths):
    on_cpu = Step(RECIPES[name], CPU, *lengths)
    want = on_cpu.forward()
    step = Step(RECIPES[name], DEVICE, *lengths)
    request.getfixturevalue("on_device")
    step.forward()  # compiles on CUDA; writes the same KV again
    with nobody_waits():
        got = step.forward()
    assert_close(got, want)
    assert_close(step.kv_cache.tensor, on_cpu.kv_cache.tensor)


@pytest.mark.parametrize("description", [WINDOWED, UNLIKE_WINDOWED], ids=["alike", "unlike"])
@pytest.mark.parametrize(
    "lengths", [([5, 1, 19], [60, 100, 19]), DECODES], ids=["mixed", "decodes"]
)
@torch.inference_mode()
def test_device_path_reads_blocks_in_parts(request, lengths, description):
    """Each group of layers by its own tables: by the kernels that read whole blocks."""
    on_cpu = Step(description, CPU, *lengths)
    want = on_cpu.forward()
    step = StepInParts(description, DEVICE, *lengths)
    request.getfixturevalue("on_device")
    step.forward()
    with nobody_waits():
        got = step.forward()
    assert_close(got, want)
    for layer, (ids, places) in enumerate(step.held):
        pairs = zip(step.kv_cache.layer(layer), on_cpu.kv_cache.layer(layer), strict=True)
        for ours, theirs in pairs:
            assert_close(ours[places], theirs[ids])


@torch.inference_mode()
def test_latents_are_expanded_without_waiting(request, monkeypatch):
    """A sequence with enough new tokens is, beside others that are not."""
    monkeypatch.setattr(latent_attention, "MIN_EXPANDED", 10**9)
    want = Step(LATENT, CPU, *MIXED).forward()
    monkeypatch.setattr(latent_attention, "MIN_EXPANDED", 19)
    lengths = zip(*MIXED, strict=True)
    expanded = [latent_attention.expands(LATENT.latent, new, keys) for new, keys in lengths]
    assert expanded == [False, False, True]
    assert_close(Step(LATENT, CPU, *MIXED).forward(), want)
    step = Step(LATENT, DEVICE, *MIXED)
    request.getfixturevalue("on_device")
    step.forward()
    with nobody_waits():
        got = step.forward()
    assert_close(got, want)


def test_looking_at_values_is_refused():
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoLooking():
        int(torch.ones(1))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("description", RECIPES.values(), ids=RECIPES)
@torch.inference_mode()
def test_captured_forward_repeats_itself(description):
    step = Step(description, DEVICE, [1, 1, 1], [40, 100, 7])
    want = step.forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step.forward()
    got.zero_()
    graph.replay()
    assert_close(got, want)
