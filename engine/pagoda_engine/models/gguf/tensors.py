"""Where the tensors of a GGUF file lie, by the names that a decoder is built with.

Knows how a file groups tensors. Knows nothing of their values.
"""

import math
import re

from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS
from pagoda_engine.checkpoints.safetensors_header import DTYPES, StoredTensor
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.gguf.names import EXPERT, LAYER, SHARED_EXPERT
from pagoda_formats.gguf_file import GgufFile, GgufTensor

MAX_EXPERT_TENSORS = 1 << 20

_EXPERTS = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|up|down))_exps\.weight")
_SHARED = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|up|down))_shexp\.weight")
_SHARED_GATE = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight")
_NORM = "norm.weight"


def stored_tensors_of(file: GgufFile, *, norm_shift: float) -> dict[str, StoredTensor]:
    """Return the tensors of a file: experts one by one.

    Args:
        file: its head.
        norm_shift: added to the weights of norms, which some converters store otherwise.

    Raises:
        UnsupportedModelError: one has a type that cannot be read.
        CheckpointError: there are more experts than any model has.
    """
    found: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        _check_type(file, name, tensor)
        stored = StoredTensor(
            file.path,
            tensor.type_name,
            tensor.shape,
            tensor.offset,
            tensor.num_bytes,
            norm_shift if name.endswith(_NORM) else 0.0,
        )
        if match := _EXPERTS.fullmatch(name):
            _add_experts(found, match, stored)
        elif match := _SHARED.fullmatch(name):
            found[f"{LAYER.format(match[1])}{SHARED_EXPERT}{match[2]}.weight"] = stored
        elif _SHARED_GATE.fullmatch(name):
            found[name] = _part(stored, 0, (1, math.prod(stored.shape)), stored.num_bytes)
        else:
            found[name] = stored
    return found


def _add_experts(
    found: dict[str, StoredTensor], match: re.Match[str], stored: StoredTensor
) -> None:
    count, *shape = stored.shape
    if not count or len(found) + count > MAX_EXPERT_TENSORS:
        raise CheckpointError(stored.path, f"tensor {match[0]} has {count} experts")
    num_bytes = stored.num_bytes // count
    for expert in range(count):
        name = f"{LAYER.format(match[1])}{EXPERT.format(expert)}{match[2]}.weight"
        found[name] = _part(stored, expert * num_bytes, tuple(shape), num_bytes)


def _part(stored: StoredTensor, begin: int, shape: tuple[int, ...], num_bytes: int) -> StoredTensor:
    return StoredTensor(stored.path, stored.dtype, shape, stored.offset + begin, num_bytes)


def _check_type(file: GgufFile, name: str, tensor: GgufTensor) -> None:
    kind = tensor.type_name
    if kind not in DTYPES and kind not in BLOCK_FORMATS:
        known = (*DTYPES, *BLOCK_FORMATS)
        raise UnsupportedModelError(file.path, f"type of tensor {name},", kind, known)
