"""Which format a folder's configuration names, and what of it is supported.

Knows ``quantization_config`` and ``quantize_config.json``. Lists of modules that stay as they are
need no reading: a projection is quantised where its tensors are.
"""

import re

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.checkpoints.quantised.awq import Awq
from pagoda_engine.checkpoints.quantised.fp8 import Fp8
from pagoda_engine.checkpoints.quantised.gptq import Gptq
from pagoda_engine.checkpoints.quantised.integers import ByteIntegers, PackedIntegers
from pagoda_engine.checkpoints.quantised.scheme import Scheme
from pagoda_engine.errors import CheckpointError, UnsupportedModelError

_LAYOUTS = "float-quantized, pack-quantized and int-quantized of 4 and 8 bits"
SUPPORTED = (
    "gptq (4 and 8 bits)",
    "awq (4 bits, version gemm)",
    "fp8 (e4m3)",
    f"compressed-tensors ({_LAYOUTS})",
    "mxfp4 (of gpt-oss)",
)
MAX_GROUP_SIZE = 1 << 20

_NAME = "compressed-tensors float-quantized"
_OLD_FILE = "quantize_config.json"  # AutoGPTQ's, before there was a field for it


def read_scheme(config: ConfigReader) -> Scheme | None:
    """Return the format of a folder's weights; None: they are not quantised.

    Args:
        config: its ``config.json``.

    Raises:
        UnsupportedModelError: another format, or an option that is not read.
        CheckpointError: a field is missing or out of range.
    """
    if config.has("quantization_config"):
        section = config.section("quantization_config")
        method = section.string("quant_method")
    elif (old_path := config.path.parent / _OLD_FILE).is_file():
        section = ConfigReader.open(old_path)
        method = section.string("quant_method", "gptq")
    else:
        return None
    if method == "mxfp4":  # of whole experts, which the description tells
        return None
    read = _METHODS.get(method)
    if read is None:
        raise UnsupportedModelError(section.path, "quant_method", method, SUPPORTED)
    return read(section)


def _gptq(config: ConfigReader) -> Scheme:
    bits = config.integer("bits")
    if bits not in (4, 8):
        raise _refused(config, "bits", bits, "4", "8")
    layout = config.string("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise _refused(config, "checkpoint_format", layout, "gptq", "gptq_v2")
    for pattern in config.section("dynamic").fields if config.has("dynamic") else ():
        if not pattern.startswith("-"):  # "-" leaves modules as they are, which tensors say
            raise _refused(config, "dynamic", pattern, "patterns that begin with '-'")
    return Gptq(
        bits,
        _group_size(config),
        zero_offset=1 if layout == "gptq" else 0,
        is_symmetric=config.boolean("sym", False),
        is_ordered=not config.boolean("desc_act", False),
    )


def _awq(config: ConfigReader) -> Scheme:
    bits, version = config.integer("bits"), config.string("version", "gemm")
    if bits != 4:
        raise _refused(config, "bits", bits, "4")
    if version.lower() != "gemm":
        raise _refused(config, "version", version, "gemm")
    if not config.boolean("zero_point", True):
        raise _refused(config, "zero_point", False, "true")
    return Awq(_group_size(config))


def _fp8(config: ConfigReader) -> Scheme:
    kind = config.string("fmt", "e4m3")
    if kind != "e4m3":
        raise _refused(config, "fmt", kind, "e4m3")
    if not config.has("weight_block_size"):
        return Fp8("fp8", None, "weight_scale")
    return Fp8("fp8", _block(config, "weight_block_size"), "weight_scale_inv")


def _compressed_tensors(config: ConfigReader) -> Scheme:
    layout = config.string("format")
    status = config.string("quantization_status", "compressed")
    if status != "compressed":
        raise _refused(config, "quantization_status", status, "compressed")
    for other in ("sparsity_config", "transform_config"):
        section = config.section(other).fields if config.has(other) else {}
        if section and section.get("format") != "dense":
            raise _refused(config, other, section, "none")
    weights = _weights_of_groups(config)
    kind, bits = weights.string("type", "int"), weights.integer("num_bits")
    strategy = weights.string("strategy")
    if layout == "float-quantized" and (kind, bits) == ("float", 8):
        if strategy == "block":
            return Fp8(_NAME, _block(weights, "block_structure"), "weight_scale")
        if strategy in ("tensor", "channel"):
            return Fp8(_NAME, None, "weight_scale")
        raise _refused(weights, "strategy", strategy, "tensor", "channel", "block")
    if kind == "int" and strategy in ("tensor", "channel", "group"):
        size = _group_size(weights) if strategy == "group" else -1
        if layout == "pack-quantized" and bits in (4, 8) and strategy != "tensor":
            return PackedIntegers(bits, size)
        if layout == "int-quantized" and bits == 8:
            return ByteIntegers(size)
    said = f"{layout} ({bits} bits, {kind}, {strategy})"
    raise _refused(config, "format", said, _LAYOUTS)


def _weights_of_groups(config: ConfigReader) -> ConfigReader:
    """Return what is said of weights, which must be the same for every group of modules."""
    groups = config.section("config_groups")
    found = [groups.section(name).section("weights") for name in groups.fields]
    if not found or any(each.fields != found[0].fields for each in found):
        raise _refused(config, "config_groups", list(groups.fields), "groups with the same weights")
    return found[0]


def _group_size(config: ConfigReader) -> int:
    value = config.fields.get("group_size")
    if type(value) is not int or not (value == -1 or 0 < value <= MAX_GROUP_SIZE):
        raise CheckpointError(
            config.path, f"group_size is {value!r}, must be -1 or from 1 to {MAX_GROUP_SIZE}"
        )
    return value


def _block(config: ConfigReader, name: str) -> tuple[int, int]:
    value = config.fields.get(name)
    if isinstance(value, str) and re.fullmatch(r"\d{1,7}x\d{1,7}", value):
        value = [int(side) for side in value.split("x")]
    match value:
        case [int() as rows, int() as columns] if (
            0 < rows <= MAX_GROUP_SIZE and 0 < columns <= MAX_GROUP_SIZE
        ):
            return rows, columns
        case _:
            raise CheckpointError(config.path, f"{name} is {value!r}, must be two positive sizes")


def _refused(
    config: ConfigReader, what: str, value: object, *supported: str
) -> UnsupportedModelError:
    return UnsupportedModelError(config.path, what, value, supported)


_METHODS = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
}
