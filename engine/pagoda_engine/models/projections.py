"""The projections of a layer that may be joined of several: what a checkpoint calls their parts.

Knows names, numbers of rows and their order. Knows no tensor.
"""

from dataclasses import dataclass

from pagoda_engine.checkpoints.tensor_part import Arrange
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.weights.source import (
    heads_joined,
    one_after_another,
    turning_first,
)


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection ``[N, K]``, of parts that a checkpoint has as tensors.

    Attributes:
        names: of the parts, layer and all, without ``.weight``.
        num_rows: of each part; N together.
        num_columns: K.
        arranges: for each part what brings its rows into the engine's order; None: they are.
    """

    names: tuple[str, ...]
    num_rows: tuple[int, ...]
    num_columns: int
    arranges: tuple[Arrange | None, ...]


def qkv_projection(description: DecoderDescription, layer: int) -> Projection:
    """Return that of Q, K and V; of Q alone, where a layer reads another one's KV."""
    names, rope = description.names, description.ropes[layer]
    heads, num_heads = description.heads(layer), description.num_heads
    num_kv_heads, head_dim = heads.num_kv_heads, heads.head_dim
    stored = names.qkv
    if not description.has_kv(layer):
        steps, rotated, rows, stored = [], [num_heads], [num_heads], stored[:1]
    elif len(stored) == 1:
        steps = [heads_joined(num_heads)] if names.qkv_layout == "by_head" else []
        rotated, rows = [num_heads + num_kv_heads], [num_heads + 2 * num_kv_heads]
    else:
        steps, rotated, rows = [], [num_heads, num_kv_heads, 0], [num_heads, *[num_kv_heads] * 2]
        if layer in description.k_is_v_layers:
            stored = stored[0], stored[1], stored[1]
    arranges = [list(steps) for _ in rows]
    for arrange, count in zip(arranges, rotated, strict=True):
        order = turning_first(rope, count, head_dim)
        if order is not None:
            arrange.append(order)
    return Projection(
        names=_in_layer(description, layer, stored),
        num_rows=tuple(count * head_dim for count in rows),
        num_columns=description.hidden_size,
        arranges=tuple(map(one_after_another, arranges)),
    )


def latent_projection(description: DecoderDescription, layer: int) -> Projection:
    """Return that of the latents, of Q (or Q itself) and of K and V, and of the K that turns."""
    latent = description.latent
    assert latent is not None, "attention reads latents"
    rows = latent.q_rank or description.num_heads * latent.head_dim, latent.width
    return _plain(description, layer, description.names.latents, rows, description.hidden_size)


def q_up_projection(description: DecoderDescription, layer: int) -> Projection:
    """Return that from Q's latent to Q."""
    latent, names = description.latent, (description.names.q_up,)
    assert latent is not None, "attention reads latents"
    rows = description.num_heads * latent.head_dim
    return _plain(description, layer, names, (rows,), latent.q_rank)


def output_projection(description: DecoderDescription, layer: int) -> Projection:
    """Return that of the attention's output."""
    names, latent = (description.names.attention_output,), description.latent
    head_dim = description.heads(layer).head_dim if latent is None else latent.value_dim
    width = description.num_heads * head_dim
    return _plain(description, layer, names, (description.hidden_size,), width)


def up_projection(description: DecoderDescription, layer: int) -> Projection:
    """Return that into a dense feed-forward part: gate, then up, or up alone."""
    names, inner = description.names, description.intermediate_size_of(layer)
    if not description.is_gated:
        return _plain(description, layer, (names.up,), (inner,), description.hidden_size)
    # A checkpoint that has both joined names one tensor.
    rows = (2 * inner // len(names.gate_up),) * len(names.gate_up)
    return _plain(description, layer, names.gate_up, rows, description.hidden_size)


def down_projection(description: DecoderDescription, layer: int) -> Projection:
    """Return that out of a dense feed-forward part."""
    names, hidden = (description.names.down,), description.hidden_size
    return _plain(description, layer, names, (hidden,), description.intermediate_size_of(layer))


def adaptable_projections(description: DecoderDescription, layer: int) -> tuple[Projection, ...]:
    """Return those that adapters may add to: all but experts', routers' and those of tokens."""
    latent, attention = description.latent, [output_projection(description, layer)]
    if latent is None:
        attention.insert(0, qkv_projection(description, layer))
    else:  # that to K and V is not applied as it is, see `LatentAttention`
        up = [q_up_projection(description, layer)] if latent.q_rank else []
        attention = [latent_projection(description, layer), *up, *attention]
    experts = description.experts
    if experts is not None and layer in experts.layers and not experts.is_beside_dense:
        return tuple(attention)
    return *attention, up_projection(description, layer), down_projection(description, layer)


def _plain(
    description: DecoderDescription,
    layer: int,
    names: tuple[str, ...],
    num_rows: tuple[int, ...],
    num_columns: int,
) -> Projection:
    arranges = (None,) * len(names)
    return Projection(_in_layer(description, layer, names), num_rows, num_columns, arranges)


def _in_layer(
    description: DecoderDescription, layer: int, names: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(description.names.layer.format(layer) + name for name in names)
