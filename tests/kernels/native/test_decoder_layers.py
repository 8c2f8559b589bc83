"""All layers at once against the same layers by torch's operators, and against themselves."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from pagoda_kernels import add_rms_norm, paged_attention, plan_attention, rms_norm, write_qkv
from pagoda_kernels.attention.batch import AttentionBatch
from pagoda_kernels.gate import reference as gate_reference
from pagoda_kernels.kv.quantisation import dequantise
from pagoda_kernels.kv.quantisation import quantise as quantise_kv
from pagoda_kernels.native.decoder_layers import DecoderLayers, LayerWeights
from pagoda_kernels.native.packed_linear import PackedLinear
from pagoda_kernels.native.quantised_weight import Bits, quantise
from pagoda_kernels.one_byte_dtypes import LARGEST

CPU = torch.device("cpu")
NUM_BLOCKS, VOCAB = 60, 50


@dataclass(frozen=True)
class Shape:
    """A decoder, and how its tokens are laid out."""

    hidden: int = 64
    inner: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    windows: tuple[int | None, ...] = (None, None)
    has_qk_norm: bool = False
    rotary_dim: int | None = None
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    bits: Bits | None = None
    is_tied: bool = False
    cache_dtype: torch.dtype | None = None


SHAPES = {
    "small": Shape(),
    "heads-of-8": Shape(head_dim=8, hidden=30, inner=34),
    "heads-of-80": Shape(head_dim=80, num_heads=6),
    "heads-of-256": Shape(head_dim=256, num_heads=2, num_kv_heads=1),
    "one-head-each": Shape(num_heads=3, num_kv_heads=3, block_size=4),
    "a-head-for-60": Shape(num_heads=60, num_kv_heads=1, head_dim=8),
    "windows": Shape(windows=(5, None, 70), block_size=8),
    "qk-norm": Shape(has_qk_norm=True, head_dim=40),
    "half-turned": Shape(head_dim=32, rotary_dim=16),
    "tied": Shape(is_tied=True),
    "int8": Shape(hidden=70, inner=98, bits=8),
    "int4": Shape(hidden=70, inner=98, bits=4),
    "e4m3-cache": Shape(cache_dtype=torch.float8_e4m3fn, head_dim=40, windows=(20, None)),
    "int8-cache": Shape(cache_dtype=torch.int8, num_kv_heads=4, block_size=4),
}


class Model:
    """Random weights, plain (what quantised ones stand for) and packed."""

    def __init__(self, shape: Shape) -> None:
        self.shape, dtype = shape, shape.dtype
        qkv_rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        attended = shape.num_heads * shape.head_dim

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return (torch.randn(rows, columns) / columns**0.5).to(dtype)

        def norm(width: int) -> torch.Tensor:
            return (1 + 0.1 * torch.randn(width)).to(dtype)

        self.embedding = torch.randn(VOCAB, shape.hidden).to(dtype)
        self.final_norm = norm(shape.hidden)
        angles = torch.outer(torch.arange(600.0), torch.rand(self.rotary_dim // 2))
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
        self.plain = [
            {
                "input_norm": norm(shape.hidden),
                "post_attention_norm": norm(shape.hidden),
                "q_norm": norm(shape.head_dim) if shape.has_qk_norm else None,
                "k_norm": norm(shape.head_dim) if shape.has_qk_norm else None,
                "qkv": matrix(qkv_rows, shape.hidden),
                "output": matrix(shape.hidden, attended),
                "gate_up": matrix(2 * shape.inner, shape.hidden),
                "down": matrix(shape.hidden, shape.inner),
            }
            for _ in shape.windows
        ]
        # Different ones for each head; largest values beyond what they reach are cut off.
        self.scales = [
            tuple(
                1.5 / LARGEST[shape.cache_dtype] * (1 + torch.rand(shape.num_kv_heads))
                for _ in "kv"
            )
            if shape.cache_dtype
            else (None, None)
            for _ in shape.windows
        ]
        self.native = DecoderLayers(
            [
                LayerWeights(
                    **{name: w[name] for name in ("input_norm", "post_attention_norm")},
                    q_norm=w["q_norm"],
                    k_norm=w["k_norm"],
                    qkv=PackedLinear(w["qkv"], bits=shape.bits),
                    output=PackedLinear(w["output"], bits=shape.bits),
                    gate_up=PackedLinear(w["gate_up"], is_gated=True, bits=shape.bits),
                    down=PackedLinear(w["down"], bits=shape.bits),
                    window=window,
                    k_scale=k_scale,
                    v_scale=v_scale,
                )
                for w, window, (k_scale, v_scale) in zip(
                    self.plain, shape.windows, self.scales, strict=True
                )
            ],
            embedding=PackedLinear(self.embedding) if shape.is_tied else self.embedding,
            final_norm=self.final_norm,
            cos_sin=self.cos_sin,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=1e-5,
        )
        assert self.native.fits
        if shape.bits is not None:
            for w in self.plain:
                for name in ("qkv", "output", "gate_up", "down"):
                    w[name] = quantise(w[name], shape.bits).dequantised(dtype)

    @property
    def rotary_dim(self) -> int:
        return self.shape.rotary_dim or self.shape.head_dim

    def new_cache(self) -> torch.Tensor:
        """Blocks that nobody has written: NaN, or the largest codes."""
        shape = self.shape
        size = (2, len(shape.windows), NUM_BLOCKS, shape.block_size)
        size = (*size, shape.num_kv_heads, shape.head_dim)
        if shape.cache_dtype is not None:
            return torch.full(size, LARGEST[shape.cache_dtype]).to(shape.cache_dtype)
        return torch.full(size, float("nan"), dtype=shape.dtype)

    def by_torch(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, kv: torch.Tensor
    ) -> torch.Tensor:
        shape = self.shape
        residual = F.embedding(ids, self.embedding)
        hidden = rms_norm(residual, self.plain[0]["input_norm"], 1e-5)
        for i, w in enumerate(self.plain):
            k_scale, v_scale = self.scales[i]
            q = write_qkv(
                F.linear(hidden, w["qkv"]),
                positions,
                self.cos_sin,
                kv[0, i],
                kv[1, i],
                batch.slot_mapping,
                num_heads=shape.num_heads,
                q_norm=w["q_norm"],
                k_norm=w["k_norm"],
                eps=1e-5,
                k_scale=k_scale,
                v_scale=v_scale,
            )
            attended = paged_attention(
                q, kv[0, i], kv[1, i], batch,
                scale=shape.head_dim**-0.5, sliding_window=shape.windows[i],
                k_scale=k_scale, v_scale=v_scale,
            ).flatten(1)  # fmt: skip
            hidden, residual = add_rms_norm(
                F.linear(attended, w["output"]), residual, w["post_attention_norm"], 1e-5
            )
            hidden = F.linear(gate_reference.silu_mul(F.linear(hidden, w["gate_up"])), w["down"])
            last = i == len(self.plain) - 1
            norm = self.final_norm if last else self.plain[i + 1]["input_norm"]
            hidden, residual = add_rms_norm(hidden, residual, norm, 1e-5)
        return hidden


class Sequences:
    """Token ids and blocks of some sequences; what each has computed."""

    def __init__(self, model: Model, lengths: list[int]) -> None:
        self.model = model
        self.ids = [torch.randint(VOCAB, (n,)) for n in lengths]
        free = torch.randperm(NUM_BLOCKS).tolist()
        size = model.shape.block_size
        self.tables = [[free.pop() for _ in range(-(-n // size))] for n in lengths]

    def step(
        self, parts: list[tuple[int, int, int]], kv: torch.Tensor, *, by_torch: bool = False,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Compute tokens [first, end) of sequence s for every (s, first, end)."""
        ids = torch.cat([self.ids[s][first:end] for s, first, end in parts])
        positions = torch.cat([torch.arange(first, end) for _, first, end in parts]).int()
        batch = plan_attention(
            seqlens_q=[end - first for _, first, end in parts],
            context_lens=[end for _, _, end in parts],
            block_tables=[self.tables[s] for s, _, _ in parts],
            block_size=self.model.shape.block_size,
            device=CPU,
        )
        if by_torch:
            if self.model.shape.cache_dtype is None:
                kv.nan_to_num_()
            return self.model.by_torch(ids, positions, batch, kv)
        return self.model.native.hidden(ids, positions, batch, kv, rows)


def model_of(name: str, dtype: torch.dtype) -> Model:
    return Model(replace(SHAPES[name], dtype=dtype))


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", SHAPES)
@DTYPES
def test_layers_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    sequences = Sequences(model, [70, 1, 33, 20])
    found, expected = model.new_cache(), model.new_cache()
    for parts in (
        [(0, 0, 50), (1, 0, 1), (2, 0, 32)],
        [(0, 50, 69), (2, 32, 33), (3, 0, 20)],
        [(0, 69, 70)],
    ):
        got = sequences.step(parts, found)
        want = sequences.step(parts, expected, by_torch=True)
        error = (got.double() - want.double()).norm() / want.double().norm()
        # Of a sum that comes out differently the code may be the next one.
        is_exact = dtype is torch.float32 and model.shape.cache_dtype is None
        assert error < (1e-5 if is_exact else 3e-2)
    if model.shape.cache_dtype is not None:
        return
    written = ~found.isnan()
    torch.testing.assert_close(
        found[written].float(), expected[written].float(),
        rtol=0, atol=1e-4 if dtype is torch.float32 else 0.2,
    )  # fmt: skip


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", SHAPES)
@DTYPES
def test_a_token_is_the_same_to_the_bit_however_it_came(name: str, dtype: torch.dtype) -> None:
    """In one chunk or in many, alone or with others, with one thread or with more."""
    model = model_of(name, dtype)
    sequences = Sequences(model, [90, 64, 17, 30])
    torch.set_num_threads(1)
    at_once = {
        s: sequences.step([(s, 0, len(ids))], model.new_cache())
        for s, ids in enumerate(sequences.ids)
    }
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        kv = model.new_cache()
        done = [0, 0, 0, 0]
        chunks = torch.randint(1, 40, (100,)).tolist()
        while any(done[s] < len(ids) for s, ids in enumerate(sequences.ids)):
            parts = []
            for s, ids in enumerate(sequences.ids):
                if done[s] < len(ids):
                    # The last tokens one by one, as decodes are.
                    size = 1 if done[s] >= len(ids) - 5 else chunks.pop()
                    parts.append((s, done[s], min(len(ids), done[s] + size)))
            hidden = sequences.step(parts, kv)
            for s, first, end in parts:
                assert torch.equal(hidden[: end - first], at_once[s][first:end]), (s, first, end)
                hidden, done[s] = hidden[end - first :], end
    torch.set_num_threads(1)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@DTYPES
def test_codes_and_what_they_stand_for_are_those_of_torch(
    dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    shape = replace(SHAPES["e4m3-cache"], dtype=dtype, cache_dtype=cache_dtype, windows=(None,))
    model = Model(shape)
    for scale in model.scales[0]:  # powers of two: a product with one is exact wherever it is taken
        scale.copy_(2 ** scale.log2().floor())
    sequences = Sequences(model, [90])
    coded, plain = model.new_cache(), torch.zeros(model.new_cache().shape, dtype=dtype)
    sequences.step([(0, 0, 90)], coded)
    sequences.step([(0, 0, 90)], plain)
    blocks = sequences.tables[0]
    for plane, scale in enumerate(model.scales[0]):
        k = plain[plane, 0, blocks].flatten(0, 1)[:90]
        codes = coded[plane, 0, blocks].flatten(0, 1)[:90]
        assert codes.view(torch.uint8).equal(quantise_kv(k, scale, cache_dtype).view(torch.uint8))
        assert (codes.float().abs() == LARGEST[cache_dtype]).any()  # some are cut off
        plain[plane, 0, blocks] = dequantise(coded[plane, 0, blocks], scale, dtype)

    # A token without a slot attends to what is there, whoever wrote it.
    def last_token(kv: torch.Tensor) -> torch.Tensor:
        batch = plan_attention(
            seqlens_q=[1], context_lens=[90], block_tables=[blocks], block_size=16, device=CPU
        )
        batch.slot_mapping.fill_(-1)
        return model.native.hidden(sequences.ids[0][-1:], torch.tensor([89]), batch, kv, None)

    assert torch.equal(last_token(coded), last_token(plain))


@pytest.mark.usefixtures("native")
def test_a_cache_in_one_byte_needs_scales() -> None:
    model = model_of("small", torch.float32)
    with pytest.raises(ValueError, match=r"got torch\.int8"):
        Sequences(model, [9]).step([(0, 0, 9)], model.new_cache().nan_to_num(0).to(torch.int8))


@pytest.mark.usefixtures("native", "num_threads")
@DTYPES
def test_only_the_rows_that_are_wanted(dtype: torch.dtype) -> None:
    model = model_of("windows", dtype)
    sequences = Sequences(model, [40, 30])
    parts = [(0, 0, 40), (1, 0, 30)]
    everything, kv = sequences.step(parts, model.new_cache()), model.new_cache()
    rows = torch.tensor([69, 3, 3, 40])
    assert torch.equal(sequences.step(parts, kv, rows=rows), everything[rows])
    no_rows = torch.empty(0, dtype=torch.int64)
    none = sequences.step(parts, again := model.new_cache(), rows=no_rows)
    assert none.shape == (0, model.shape.hidden)
    assert torch.equal(again.nan_to_num(7.0), kv.nan_to_num(7.0))  # KV of all layers is there


@pytest.mark.usefixtures("native")
def test_tokens_without_a_slot_write_nothing() -> None:
    model = model_of("small", torch.float32)
    sequences = Sequences(model, [20])
    kv = model.new_cache().fill_(9.0)
    batch = plan_attention(
        seqlens_q=[20], context_lens=[20], block_tables=sequences.tables, block_size=16, device=CPU
    )
    batch.slot_mapping[5:] = -1
    model.native.hidden(sequences.ids[0], torch.arange(20), batch, kv, torch.tensor([0]))
    assert (kv != 9.0).sum() == 2 * 2 * 5 * 2 * 16  # K and V, layers, tokens, heads, elements


@pytest.mark.usefixtures("native")
def test_layers_are_reported_one_after_the_other() -> None:
    model = model_of("windows", torch.float32)
    sequences = Sequences(model, [9])
    batch = plan_attention(
        seqlens_q=[9], context_lens=[9], block_tables=sequences.tables, block_size=8, device=CPU
    )
    kv, seen = model.new_cache(), []
    arguments = sequences.ids[0], torch.arange(9), batch

    def on_layer(layer: int) -> None:
        written = [bool((~kv[:, i].isnan()).any()) for i in range(3)]
        seen.append((layer, written))

    found = model.native.hidden(*arguments, kv, None, on_layer)
    assert seen == [
        (0, [True, False, False]),
        (1, [True, True, False]),
        (2, [True, True, True]),
    ]
    assert torch.equal(found, model.native.hidden(*arguments, model.new_cache(), None))


@pytest.mark.usefixtures("native")
def test_blocks_of_another_decoder_are_refused() -> None:
    model = model_of("small", torch.float32)
    sequences = Sequences(model, [9])
    for kv in (
        model.new_cache()[:, :1],
        model.new_cache().bfloat16(),
        model.new_cache().transpose(3, 4).contiguous().transpose(3, 4),
    ):
        with pytest.raises(ValueError, match=r"kv: expected torch\.float32"):
            sequences.step([(0, 0, 9)], kv)
