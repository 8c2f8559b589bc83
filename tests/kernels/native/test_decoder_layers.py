"""All layers at once against the same layers by torch's operators, and against themselves."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from support.native_decoder import Model, Sequences, Shape

from pagoda_kernels import plan_attention
from pagoda_kernels.cut import Cut, CutShortError
from pagoda_kernels.kv.quantisation import dequantise
from pagoda_kernels.kv.quantisation import quantise as quantise_kv
from pagoda_kernels.native import decoder_layers
from pagoda_kernels.native.library import NativeLibrary
from pagoda_kernels.native.memory import room_of
from pagoda_kernels.native.packed_latents import LatentsShape
from pagoda_kernels.one_byte_dtypes import LARGEST

CPU = torch.device("cpu")

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
    "unturned": Shape(windows=(None, 9, None), unturned=frozenset({0, 2})),
    "multipliers": Shape(hidden=70, embedding_multiplier=6.0, residual_multiplier=0.3),
    "norms-around": Shape(hidden=70, has_norms_after=True, residual_multiplier=0.3),
    "norms-after": Shape(has_norms_before=False, has_norms_after=True, num_experts=4),
    "joined-qk-norm": Shape(has_qk_norm=True, qk_norm_place="joined", head_dim=10, clip=0.9),
    "gemma": Shape(
        norm="rms_unit_offset", gate="gelu_tanh", has_qk_norm=True, has_norms_after=True, hidden=70
    ),
    "joined-unit-offset": Shape(norm="rms_unit_offset", has_qk_norm=True, qk_norm_place="joined"),
    "starcoder": Shape(norm="layer", is_gated=False, gate="gelu_tanh", hidden=70, inner=130),
    "neox": Shape(
        norm="layer", is_gated=False, gate="gelu", is_parallel=True, hidden=70, rotary_dim=4
    ),
    "command-r": Shape(
        norm="layer",
        is_parallel=True,
        has_one_norm=True,
        has_qk_norm=True,
        hidden=70,
        qk_norm_place="each_head",
        head_dim=10,
        unturned=frozenset({1}),
        clip=0.9,
    ),
    "parallel-experts": Shape(
        is_parallel=True,
        has_one_norm=True,
        has_norms_after=True,
        num_experts=4,
        residual_multiplier=0.3,
        windows=(None, 9, None),
    ),
    "parallel-int8": Shape(is_parallel=True, is_gated=False, gate="silu", bits=8, hidden=34),
    "layer-norms-after": Shape(norm="layer", has_norms_after=True, has_norms_before=False),
    "gelu-gate-int4": Shape(hidden=70, inner=98, gate="gelu", bits=4),
    "gpt2": Shape(
        norm="layer",
        is_gated=False,
        gate="gelu_tanh",
        has_position_table=True,
        hidden=70,
        embedding_multiplier=2.0,
        unturned=frozenset({0, 1}),
        num_kv_heads=4,
    ),
    "bloom": Shape(
        norm="layer",
        is_gated=False,
        gate="gelu_tanh",
        has_embedding_norm=True,
        has_alibi=True,
        unturned=frozenset({0, 1}),
        num_kv_heads=4,
        is_tied=True,
        hidden=70,
    ),
    "alibi-and-windows": Shape(has_alibi=True, soft_cap=2.0, windows=(9, None), num_heads=6),
    "soft-cap": Shape(soft_cap=2.0, windows=(9, None)),
    "gelu-int4": Shape(hidden=70, inner=98, gate="gelu_tanh", bits=4),
    "clip": Shape(has_qk_norm=True, clip=0.9, num_heads=3, num_kv_heads=3, head_dim=6),
    "tied": Shape(is_tied=True, embedding_multiplier=0.5),
    "int8": Shape(hidden=70, inner=98, bits=8),
    "int4": Shape(hidden=70, inner=98, bits=4),
    "experts": Shape(hidden=70, inner=98, num_experts=6, windows=(None, None, None)),
    "experts-int4": Shape(hidden=70, inner=98, num_experts=6, bits=4),
    "a-shared-expert": Shape(num_experts=5, per_row=3, has_shared=True),
    "sinks": Shape(has_sinks=True, windows=(9, None), num_heads=5, num_kv_heads=1),
    "latents": Shape(latents=LatentsShape(32, 16, 8, 12), head_dim=24, windows=(None,) * 3),
    "latents-of-q": Shape(
        latents=LatentsShape(48, 10, 6, 20), head_dim=16, q_rank=22, num_heads=5, block_size=4
    ),
    "latents-in-halves": Shape(
        latents=LatentsShape(80, 8, 40, 66), head_dim=48, num_heads=50, is_interleaved=False
    ),
    "latents-int4": Shape(
        latents=LatentsShape(112, 16, 8, 12), head_dim=24, q_rank=22, bits=4, num_experts=4
    ),
    "e4m3-cache": Shape(cache_dtype=torch.float8_e4m3fn, head_dim=40, windows=(20, None)),
    "int8-cache": Shape(cache_dtype=torch.int8, num_kv_heads=4, block_size=4),
    "e4m3-cache-and-sinks": Shape(cache_dtype=torch.float8_e4m3fn, has_sinks=True),
}


def model_of(name: str, dtype: torch.dtype) -> Model:
    return model_of_shape(replace(SHAPES[name], dtype=dtype))


def model_of_shape(shape: Shape) -> Model:
    """Return what the test's seed makes of `shape`, as one library has it: made once."""
    model, state = _made(shape, decoder_layers.native_library(), torch.initial_seed())
    torch.set_rng_state(state)
    return model


@lru_cache(maxsize=3 * len(SHAPES))
def _made(shape: Shape, library: NativeLibrary, seed: int) -> tuple[Model, torch.Tensor]:
    return Model(shape), torch.get_rng_state()


@pytest.fixture(autouse=True)
def poisoned_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step is given to work in holds NaN."""
    monkeypatch.setattr(decoder_layers, "room_of", lambda n: room_of(n).fill_(0xFF))


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)

LENGTHS = [70, 1, 33, 20]
STEPS = (
    [(0, 0, 50), (1, 0, 1), (2, 0, 32)],
    [(0, 50, 69), (2, 32, 33), (3, 0, 20)],
    [(0, 69, 70)],
)


@lru_cache(maxsize=2 * len(SHAPES))
def by_torch(
    shape: Shape, seed: int, library: NativeLibrary | None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What torch makes of `STEPS`, and KV after them; `library` made the codes, if there are any.

    The same for any number of threads, and of plain weights for any library.
    """
    model = model_of_shape(shape)
    sequences, kv = Sequences(model, LENGTHS), model.new_cache()
    return [sequences.step(parts, kv, by_torch=True) for parts in STEPS], kv


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", SHAPES)
@DTYPES
def test_layers_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    shape = replace(SHAPES[name], dtype=dtype)
    if dtype is torch.bfloat16 and shape.num_experts:  # roundings would choose others of them
        shape = replace(shape, per_row=shape.num_experts)
    library = None if shape.bits is None else decoder_layers.native_library()
    all_wanted, expected = by_torch(shape, torch.initial_seed(), library)
    model = model_of_shape(shape)
    sequences, found = Sequences(model, LENGTHS), model.new_cache()
    for parts, want in zip(STEPS, all_wanted, strict=True):
        got = sequences.step(parts, found)
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


PACKED_SHAPES = {
    "heads-of-32": Shape(head_dim=32),
    "heads-of-96": Shape(head_dim=96, num_heads=3, num_kv_heads=3),
    "heads-of-256": Shape(head_dim=256, num_heads=2, num_kv_heads=1),
    "many-rows": Shape(head_dim=64, num_heads=14),
    "windows": Shape(head_dim=64, windows=(5, None, 70), block_size=32),
    "sinks": Shape(head_dim=64, has_sinks=True, windows=(9, None)),
    "alibi-and-caps": Shape(
        head_dim=64, has_alibi=True, soft_cap=2.0, windows=(9, None), num_heads=6
    ),
}


def in_rows(packed: torch.Tensor) -> torch.Tensor:
    """Return packed KV as ``[2, layers, blocks, block_size, HK, D]`` has it."""
    planes, layers, blocks, size, heads, width = packed.shape
    pair = 2 if packed.dtype is torch.bfloat16 else 1
    groups = packed.reshape(planes, layers, blocks, size // 16, heads, 16 * width)
    k = groups[0].unflatten(-1, (width // pair, 16, pair)).movedim(-2, 3).flatten(-2)
    v = groups[1].unflatten(-1, (16 // pair, width, pair)).transpose(-1, -2).flatten(-3, -2)
    return torch.stack((k.flatten(2, 3), v.transpose(-2, -3).flatten(2, 3)))


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", PACKED_SHAPES)
@DTYPES
def test_packed_kv_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    model = Model(replace(PACKED_SHAPES[name], dtype=dtype))
    assert model.native.can_pack(model.shape.block_size)
    sequences = Sequences(model, [130, 64, 17, 1])
    rows, packed = model.new_cache(), model.new_cache()
    for parts in (
        [(0, 0, 50), (1, 0, 37), (3, 0, 1)],
        [(0, 50, 129), (1, 37, 64), (2, 0, 16)],
        [(0, 129, 130), (2, 16, 17)],
    ):
        expected = sequences.step(parts, rows)
        assert not expected.isnan().any()
        assert torch.equal(sequences.step(parts, packed, is_packed=True), expected)
    torch.testing.assert_close(in_rows(packed), rows, rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", [*PACKED_SHAPES, "one-head-each", "bloom", "int8-cache"])
@DTYPES
def test_sequences_that_begin_with_the_same_blocks_are_as_alone(
    name: str, dtype: torch.dtype
) -> None:
    is_packed = name in PACKED_SHAPES
    model = Model(replace((PACKED_SHAPES if is_packed else SHAPES)[name], dtype=dtype))
    lengths = [200, 210, 170, 169, 230, 195, 160]
    sequences, kv = Sequences(model, lengths, shared=150), model.new_cache()

    def step(parts: list[tuple[int, int, int]], kv: torch.Tensor) -> torch.Tensor:
        return sequences.step(parts, kv, is_packed=is_packed)

    step([(0, 0, 195)], kv)
    step([(s, 0 if s == 6 else 128, n - 5) for s, n in enumerate(lengths) if s], kv)
    parts = [(s, n - 5, n - 4 + s % 4) for s, n in enumerate(lengths)]
    alone = [step([part], kv.clone()) for part in parts]
    assert not torch.cat(alone).isnan().any()
    assert torch.equal(step(parts, kv.clone()), torch.cat(alone))
    beside = [(4, 150, 229), *parts[:4], *parts[5:]]  # a prompt that begins with them, too
    expected = [step([beside[0]], kv.clone()), *alone[:4], *alone[5:]]
    assert torch.equal(step(beside, kv.clone()), torch.cat(expected))


@pytest.mark.usefixtures("native")
def test_what_cannot_be_packed_is_not() -> None:
    assert not model_of("heads-of-80", torch.float32).native.can_pack(16)
    assert not Model(Shape(head_dim=64)).native.can_pack(8)
    latents = Model(Shape(latents=LatentsShape(24, 16, 8, 12), head_dim=24))
    assert not latents.native.can_pack(16)  # 32 wide, but not keys and values


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("cache_dtype", LARGEST, ids=str)
@DTYPES
def test_codes_and_what_they_stand_for_are_those_of_torch(
    dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    shape = replace(SHAPES["e4m3-cache"], dtype=dtype, cache_dtype=cache_dtype, windows=(None,))
    model = Model(shape)
    scales = model.plain[0]["k_scale"], model.plain[0]["v_scale"]
    for scale in scales:  # powers of two: a product with one is exact wherever it is taken
        scale.copy_(2 ** scale.log2().floor())
    sequences = Sequences(model, [90])
    coded, plain = model.new_cache(), torch.zeros(model.new_cache().shape, dtype=dtype)
    sequences.step([(0, 0, 90)], coded)
    sequences.step([(0, 0, 90)], plain)
    blocks = sequences.tables[0]
    for plane, scale in enumerate(scales):
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
@pytest.mark.parametrize("name", ["windows", "neox", "command-r", "bloom"])
@DTYPES
def test_only_the_rows_that_are_wanted(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    sequences = Sequences(model, [40, 30])
    parts = [(0, 0, 40), (1, 0, 30)]
    everything, kv = sequences.step(parts, model.new_cache()), model.new_cache()
    rows = torch.tensor([69, 3, 3, 40])
    assert torch.equal(sequences.step(parts, kv, rows=rows), everything[rows])
    no_rows = torch.empty(0, dtype=torch.int64)
    none = sequences.step(parts, again := model.new_cache(), rows=no_rows)
    assert none.shape == (0, model.shape.hidden)
    assert torch.equal(again.nan_to_num(7.0), kv.nan_to_num(7.0))  # KV of all layers is there


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("name", SHAPES)
@DTYPES
def test_rows_that_nobody_wants_are_not_computed_once_all_kv_is_there(
    name: str, dtype: torch.dtype
) -> None:
    model = model_of(name, dtype)
    sequences, kv = Sequences(model, [40, 30, 9, 24]), model.new_cache()
    parts = [(0, 0, 7), (1, 0, 30), (2, 0, 9), (3, 0, 3)]
    sequences.step(parts, kv)
    parts = [(0, 7, 40), (3, 3, 24)]
    everything, again = sequences.step(parts, kv.clone()), kv.clone()
    rows = torch.tensor([32, 50, 51, 52, 53])
    expected = everything[rows]
    assert torch.equal(sequences.step(parts, again, rows=rows), expected)
    assert torch.equal(sequences.step(parts, kv, rows=rows[1:]), expected[1:])
    assert torch.equal(again.view(torch.uint8), kv.view(torch.uint8))


@pytest.mark.usefixtures("native", "num_threads")
def test_the_last_layer_attends_for_rows_that_are_wanted_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequences = Sequences(Model(Shape(windows=(None,), head_dim=40)), [20, 9])
    made, empty = list[torch.Tensor](), torch.empty

    def marked(*args: Any, **kwargs: Any) -> torch.Tensor:
        made.append(empty(*args, **kwargs).fill_(77))
        return made[-1]

    kv = sequences.model.new_cache()
    monkeypatch.setattr(torch, "empty", marked)
    sequences.step([(0, 0, 20), (1, 0, 9)], kv, rows=torch.tensor([19, 28]))
    (attended,) = (each for each in made if each.shape == (29, 4 * 40))
    assert (attended != 77).any(1).tolist() == [True] * 2 + [False] * 27


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
def test_it_is_cut_short_before_a_layer() -> None:
    model = model_of("windows", torch.float32)
    sequences = Sequences(model, [9])
    batch = plan_attention(
        seqlens_q=[9], context_lens=[9], block_tables=sequences.tables, block_size=8, device=CPU
    )
    arguments, cut, kv = (sequences.ids[0], torch.arange(9), batch), Cut(), model.new_cache()
    expected = model.native.hidden(*arguments, model.new_cache(), None, cut=cut)
    with pytest.raises(CutShortError):
        model.native.hidden(*arguments, kv, None, lambda _: cut.ask(), cut=cut)
    assert [bool((~kv[:, i].isnan()).any()) for i in range(3)] == [True, False, False]
    with pytest.raises(CutShortError):
        model.native.hidden(*arguments, kv, None, cut=cut)
    cut.withdraw()
    assert torch.equal(expected, model.native.hidden(*arguments, kv, None, cut=cut))


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
