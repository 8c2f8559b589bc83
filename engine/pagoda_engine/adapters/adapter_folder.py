"""Reads a PEFT folder: adapter_config.json and adapter_model.safetensors.

Knows files and names. Knows nothing of slots.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from pagoda_engine.adapters.adapter import DIGEST_BYTES, Adapter, LoraWeights
from pagoda_engine.adapters.adapter_config import adapter_config
from pagoda_engine.adapters.adapter_numbers import check_numbers
from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.checkpoints.regular_file import open_regular
from pagoda_engine.checkpoints.safetensors_header import (
    DTYPES,
    StoredTensor,
    read_header,
    stored_tensors,
)
from pagoda_engine.errors import AdapterError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.projections import adaptable_projections

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
SIDES = (".lora_A.weight", ".lora_B.weight")


def read_adapter(
    folder: Path,
    description: DecoderDescription,
    *,
    max_rank: int,
    dtype: torch.dtype = torch.float32,
) -> Adapter:
    """Read an adapter for a decoder. Blocks while it reads; any thread may call it.

    Tensors are read once their shapes were found to fit, so that no more bytes are held than a slot
    of this rank has room for, in the dtype of the file.

    Args:
        folder: as PEFT's `save_pretrained` writes it.
        description: of the decoder.
        max_rank: of a slot.
        dtype: of the slots, which is the model's.

    Raises:
        AdapterError: it asks for what is not done here, does not fit the decoder, is damaged, or
            has numbers that no adapter has (see `check_numbers`).
        CheckpointError: a file cannot be read, or is not what it should be.
    """
    config = adapter_config(ConfigReader.open(folder / CONFIG_NAME), max_rank=max_rank)
    path = folder / WEIGHTS_NAME
    shapes = _shapes(description, config.rank)
    try:
        with open_regular(path) as file:
            stored = _named(path, stored_tensors(path, read_header(path, file)), description)
            _check(path, stored, shapes)
            state = hashlib.blake2b(b"pagoda.adapter.v1", digest_size=DIGEST_BYTES)
            state.update(repr(config.scale).encode())
            tensors = {}
            for name, tensor in sorted(stored.items()):
                file.seek(tensor.offset)
                data = bytearray(file.read(tensor.num_bytes))
                if len(data) != tensor.num_bytes:
                    raise AdapterError(path, f"{name} ends early; copy the file again")
                state.update(f"{name} {tensor.dtype} {tensor.shape} ".encode())
                state.update(data)
                values = torch.frombuffer(data, dtype=DTYPES[tensor.dtype]).view(tensor.shape)
                tensors[name] = values
    except OSError as error:
        raise AdapterError(path, f"cannot be read: {error.strerror}") from error
    adapted = sorted({name.removesuffix(side) for name in tensors for side in SIDES} & {*shapes})
    weights = {
        name: LoraWeights(tensors[name + SIDES[0]], tensors[name + SIDES[1]]) for name in adapted
    }
    for name, each in weights.items():
        check_numbers(path, name, each, config.scale, dtype)
    return Adapter(state.digest(), config.rank, config.scale, weights)


def _shapes(description: DecoderDescription, rank: int) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the shapes of A and B for each projection that may be adapted."""
    return {
        name: ((rank, projection.num_columns), (rows, rank))
        for layer in range(description.num_layers)
        for projection in adaptable_projections(description, layer)
        for name, rows in zip(projection.names, projection.num_rows, strict=True)
    }


def _named(
    path: Path, stored: Mapping[str, StoredTensor], description: DecoderDescription
) -> dict[str, StoredTensor]:
    """Return tensors by the names that the decoder's checkpoint has for their projections."""
    prefix = description.names.optional_prefix
    named = {}
    for name, tensor in stored.items():
        if not name.startswith(PEFT_PREFIX):
            raise AdapterError(path, f"{name!r} must begin with {PEFT_PREFIX!r}")
        own = description.names.renamed(name.removeprefix(PEFT_PREFIX))
        named[own if own.startswith(prefix) else prefix + own] = tensor
    return named


def _check(
    path: Path,
    stored: Mapping[str, StoredTensor],
    shapes: Mapping[str, tuple[tuple[int, int], ...]],
) -> None:
    """Raise AdapterError unless every tensor is one side of a projection, and has its other."""
    if not stored:
        raise AdapterError(path, "has no tensors")
    for name, tensor in stored.items():
        side = next((i for i, end in enumerate(SIDES) if name.endswith(end)), None)
        module = name if side is None else name.removesuffix(SIDES[side])
        if side is None or module not in shapes:
            kinds = sorted({known.rpartition(".")[2] for known in shapes})
            raise AdapterError(
                path,
                f"has {name!r}, which is not served: adapters are lora_A and lora_B of "
                f"{', '.join(kinds)} in layers' attention and dense feed-forward parts",
            )
        expected = shapes[module][side]
        if tensor.shape != expected:
            raise AdapterError(
                path,
                f"{name} is {list(tensor.shape)}, must be {list(expected)} for this model and r",
            )
        if tensor.dtype not in DTYPES:
            raise AdapterError(
                path, f"{name} is {tensor.dtype}, must be one of {', '.join(DTYPES)}"
            )
        if module + SIDES[1 - side] not in stored:
            raise AdapterError(path, f"has {name}, but no {module + SIDES[1 - side]}")
