"""Where the tensors of a GGUF file lie, by the names that a decoder is built with.

Knows how a file groups tensors. Knows nothing of their values.
"""

import math
import re

from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS
from pagoda_engine.checkpoints.safetensors_header import DTYPES, StoredTensor
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.gguf.names import EXPERT, HEAD, LAYER, SHARED_EXPERT
from pagoda_formats.gguf_file import GgufFile, GgufTensor

MAX_PARTS = 1 << 20

_EXPERTS = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|up|down))_exps\.(weight|bias)")
_HEADS = re.compile(r"blk\.(\d+)\.(attn_[kv]_b)\.weight")
_SHARED = re.compile(r"blk\.(\d+)\.(ffn_(?:gate|up|down))_shexp\.weight")
_SHARED_GATE = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight")
_NORM = "norm.weight"


def stored_tensors_of(file: GgufFile, *, norm_shift: float) -> dict[str, StoredTensor]:
    """Return the tensors of a file: experts, and heads of latents, one by one.

    Args:
        file: its head.
        norm_shift: added to the weights of norms, which some converters store otherwise.

    Raises:
        UnsupportedModelError: one has a type that cannot be read.
        CheckpointError: there are more experts or heads than any model has.
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
            each = f"{LAYER.format(match[1])}{EXPERT}{match[2]}.{match[3]}"
            _add_parts(found, each, name, stored)
        elif match := _HEADS.fullmatch(name):
            _add_parts(found, f"{LAYER.format(match[1])}{match[2]}.{HEAD}.weight", name, stored)
        elif match := _SHARED.fullmatch(name):
            found[f"{LAYER.format(match[1])}{SHARED_EXPERT}{match[2]}.weight"] = stored
        elif _SHARED_GATE.fullmatch(name):
            found[name] = _part(stored, 0, (1, math.prod(stored.shape)), stored.num_bytes)
        else:
            found[name] = stored
    return found


def _add_parts(found: dict[str, StoredTensor], each: str, name: str, stored: StoredTensor) -> None:
    """Add the parts of a tensor along its first dim, by names with their index."""
    count, *shape = stored.shape
    if not count or len(found) + count > MAX_PARTS:
        raise CheckpointError(stored.path, f"tensor {name} has {count} experts or heads")
    num_bytes = stored.num_bytes // count
    for i in range(count):
        found[each.format(i)] = _part(stored, i * num_bytes, tuple(shape), num_bytes)


def _part(stored: StoredTensor, begin: int, shape: tuple[int, ...], num_bytes: int) -> StoredTensor:
    return StoredTensor(stored.path, stored.dtype, shape, stored.offset + begin, num_bytes)


def _check_type(file: GgufFile, name: str, tensor: GgufTensor) -> None:
    kind = tensor.type_name
    if kind not in DTYPES and kind not in BLOCK_FORMATS:
        known = (*DTYPES, *BLOCK_FORMATS)
        raise UnsupportedModelError(file.path, f"type of tensor {name},", kind, known)
