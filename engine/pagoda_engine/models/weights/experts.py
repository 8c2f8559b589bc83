"""Takes the experts of a layer, however a checkpoint has them: each alone, or all in one tensor.

Knows how a description lays them out. Knows nothing of what is computed with them.
"""

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight
from pagoda_engine.checkpoints.tensor_part import Arrange, Part
from pagoda_engine.models.weights.source import turns_apart
from pagoda_engine.models.weights.taker import WeightTaker

Taken = tuple[torch.Tensor | CodedWeight, torch.Tensor | None]


def expert_gate_up(taker: WeightTaker, prefix: str) -> Taken:
    """Return ``[E * 2 * intermediate, hidden]``, rows of gate, then up, and its bias or None.

    Args:
        taker: of the model.
        prefix: of the layer's tensors.
    """
    description, names = taker.description, taker.description.names
    experts = description.experts
    assert experts is not None, "the layer has some"
    rows, width = 2 * experts.intermediate_size, description.hidden_size
    if names.experts_layout == "stacked":
        (name,) = names.expert_gate_up
        return _stacked(taker, prefix + names.expert + name, rows, width, turns_apart)
    if names.experts_layout == "stacked_rows":
        return _stacked_rows(taker, prefix + names.expert + names.expert_gate_up[0], rows, width)
    return _each(taker, prefix, names.expert_gate_up, rows, width)


def expert_down(taker: WeightTaker, prefix: str) -> Taken:
    """Return ``[E * hidden, intermediate]`` and its bias or None; arguments as `expert_gate_up`."""
    description, names = taker.description, taker.description.names
    experts = description.experts
    assert experts is not None, "the layer has some"
    rows, width = description.hidden_size, experts.intermediate_size
    if names.experts_layout == "stacked":
        return _stacked(taker, prefix + names.expert + names.expert_down, rows, width, None)
    if names.experts_layout == "stacked_rows":
        return _stacked_rows(taker, prefix + names.expert + names.expert_down, rows, width)
    return _each(taker, prefix, (names.expert_down,), rows, width)


def _each(
    taker: WeightTaker, prefix: str, names: tuple[str, ...], num_rows: int, width: int
) -> Taken:
    experts = taker.description.experts
    assert experts is not None, "the layer has some"
    count, rows = experts.num_experts, num_rows // len(names)
    stems = [
        f"{prefix}{taker.description.names.expert.format(expert)}{name}"
        for expert in range(count)
        for name in names
    ]
    bias = None
    if experts.has_bias:
        biases = [Part(f"{stem}.bias", (rows,)) for stem in stems]
        bias = taker.source.take(biases, (count, num_rows))
    weights = [Part(f"{stem}.weight", (rows, width)) for stem in stems]
    return taker.rows(weights, (count * num_rows, width)), bias


def _stacked_rows(taker: WeightTaker, name: str, num_rows: int, width: int) -> Taken:
    """Take one tensor of all experts, which is as it is wanted."""
    experts = taker.description.experts
    assert experts is not None, "the layer has some"
    count = experts.num_experts
    return taker.rows([Part(name, (count, num_rows, width))], (count * num_rows, width)), None


def _stacked(
    taker: WeightTaker, name: str, num_rows: int, width: int, arrange: Arrange | None
) -> Taken:
    """Take one tensor of all experts; `arrange` brings its rows into order, dim 1."""
    experts = taker.description.experts
    assert experts is not None, "the layer has some"
    count = experts.num_experts
    if experts.stored == "mxfp4":
        part = Part(f"{name}_blocks", (count, num_rows, width), arrange, scales=f"{name}_scales")
    else:

        def turned(tensor: torch.Tensor) -> torch.Tensor:
            rows = tensor.transpose(1, 2)
            return rows if arrange is None else arrange(rows)

        part = Part(name, (count, width, num_rows), turned)
    bias = None
    if experts.has_bias:
        bias_part = Part(f"{name}_bias", (count, num_rows), arrange)
        bias = taker.source.take([bias_part], (count, num_rows))
    return taker.rows([part], (count * num_rows, width)), bias
