"""Tensors of a model, by name.

Knows safetensors files and their index, and how to read what is stored. Knows nothing of what a
tensor is for.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pagoda_engine.checkpoints import mxfp4
from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS, BlockFormat
from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight, joined
from pagoda_engine.checkpoints.quantised.scheme import Scheme, Wanted
from pagoda_engine.checkpoints.regular_file import open_regular
from pagoda_engine.checkpoints.safetensors_header import (
    CODE_DTYPES,
    DTYPES,
    PACKED_DTYPES,
    StoredTensor,
    read_header,
    stored_tensors,
)
from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.checkpoints.weight_reader import Piece, WeightReader
from pagoda_engine.errors import CheckpointError

OnProgress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_NUMBERS: Mapping[str, torch.dtype | BlockFormat] = {**DTYPES, **BLOCK_FORMATS}
_IGNORED = (
    "rotary_emb.inv_freq",  # old exports carry what the configuration says anyway
    # of KV, which need not be quantised
    *(".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale"),
)
_WEIGHT, _BIAS = ".weight", ".bias"
_MAX_ZERO_BIAS_BYTES = 64 << 20


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model, sorted by name.

    Raises:
        CheckpointError: there are none, the index names one that is not there, or there are two
            models, as one of them was left behind.
    """
    if (folder / _INDEX).is_file():
        names = ConfigReader.open(folder / _INDEX).section("weight_map").fields.values()
        if not names or not all(isinstance(name, str) for name in names):
            raise CheckpointError(folder / _INDEX, "weight_map must name a file for each tensor")
        paths = [folder / name for name in sorted(set(names))]
        if (folder / _SINGLE).is_file() and folder / _SINGLE not in paths:
            raise CheckpointError(
                folder / _INDEX,
                f"does not name {_SINGLE}, which is there too: remove the one that is not meant",
            )
    else:
        paths = [folder / _SINGLE]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise CheckpointError(path, "is missing; only safetensors weights can be loaded")
    return tuple(paths)


def tensor_names(folder: Path) -> frozenset[str]:
    """Return the names of a model's tensors; none where the folder has no weights.

    Raises:
        CheckpointError: its index or its one file is damaged.
    """
    if (folder / _INDEX).is_file():
        return frozenset(ConfigReader.open(folder / _INDEX).section("weight_map").fields)
    path = folder / _SINGLE
    return frozenset(tensors_of([path]) if path.is_file() else ())


def tensors_of(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of safetensors files.

    Raises:
        CheckpointError: a file cannot be read or is no safetensors file, or two hold the same
            tensor.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        try:
            with open_regular(path) as file:
                header = read_header(path, file)
        except OSError as error:
            raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
        for name, tensor in stored_tensors(path, header).items():
            if name in tensors:
                raise CheckpointError(path, f"holds {name}, and so does another file")
            tensors[name] = tensor
    return tensors


class WeightFiles:
    """A `WeightSource` that reads; every tensor must be taken once, `check_all_taken` says so."""

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, StoredTensor],
        reader: WeightReader,
        dtype: torch.dtype,
        device: torch.device,
        *,
        scheme: Scheme | None = None,
        ignored: Collection[str] = (),
        ignored_prefixes: Collection[str] = (),
        optional_prefix: str = "",
        missing_hint: str = "",
        on_progress: OnProgress | None = None,
    ) -> None:
        """Begin with all tensors left.

        Args:
            path: of the model, for errors.
            tensors: by name.
            reader: of the same device; its owner closes it.
            dtype: of what `take` returns.
            device: where it is.
            scheme: of quantised weights among them; None: there are none.
            ignored: ends of names that need not be taken.
            ignored_prefixes: beginnings of such names.
            optional_prefix: of names in `take`, which the files may leave out.
            missing_hint: what to say besides where one is missing.
            on_progress: called by `take` in its thread.
        """
        self._reader = reader
        self._dtype = dtype
        self._device = device
        self._on_progress = on_progress
        self._path = path
        self._missing_hint = missing_hint
        self._tensors = dict(tensors)
        if not any(name.startswith(optional_prefix) for name in self._tensors):
            self._tensors = {optional_prefix + name: t for name, t in self._tensors.items()}
        self._scheme = scheme
        ends = (*_IGNORED, *ignored, *(scheme.ignored if scheme else ()))
        beginnings = tuple(ignored_prefixes)
        self._left = {
            name
            for name in self._tensors
            if not name.endswith(ends) and not name.startswith(beginnings)
        }
        self._num_bytes = sum(self._tensors[name].num_bytes for name in self._left)
        self._num_loaded_bytes = 0

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return tensors joined, see `WeightSource`; the device has them.

        A part that is arranged, or quantised, is held twice for a moment, as stored and as wanted.

        Raises:
            CheckpointError: one is missing, has another shape or no float dtype, or cannot be read.
        """
        self._check(parts)
        dtype = dtype or self._dtype
        joined = torch.empty(shape, dtype=dtype, device=self._device)
        flat, begin = joined.view(-1), 0
        pieces: list[Piece] = []
        for part in parts:
            wanted = flat[begin : begin + _num_elements(part)]
            begin += len(wanted)
            if part.scales:
                self._read_mxfp4(part, wanted)
                continue
            is_coded = self._coded_name(part) is not None
            if part.arrange is None and not is_coded:
                pieces += [self._piece(each, wanted) for each in _stored_parts(part)]
                continue
            self._read(pieces)
            pieces = []
            if is_coded:
                stored = self._coded(part).dequantised()
            else:
                stored = torch.empty(part.shape, dtype=dtype, device=self._device)
                self._read([self._piece(each, stored.view(-1)) for each in _stored_parts(part)])
            arranged = stored if part.arrange is None else part.arrange(stored)
            wanted.view(arranged.shape).copy_(arranged)
        self._read(pieces)
        assert begin == len(flat), f"{shape} has other elements than its {len(parts)} parts"
        return joined

    def take_weight(
        self, parts: Sequence[Part], shape: tuple[int, int]
    ) -> torch.Tensor | CodedWeight:
        """Return the rows of several weights joined, as codes where all have such; see `take`.

        MXFP4 is codes on a CPU alone: elsewhere it is widened, and would be held twice for that.
        """
        if len(parts) == 1 and parts[0].scales and self._device.type == "cpu":
            self._check(parts)
            blocks, scales = self._packed_mxfp4(parts[0])
            return mxfp4.as_codes(blocks, scales, self._dtype)
        if self._device.type == "cpu" and all(self._has_mxfp4_blocks(part) for part in parts):
            self._check(parts)
            return self._mxfp4_blocks(parts, shape)
        if any(self._coded_name(part) is None for part in parts):
            return self.take(parts, shape)
        self._check(parts)
        coded = [self._coded(part).arranged(part.arrange) for part in parts]
        whole = joined(coded)
        if whole is None:
            return torch.cat([each.dequantised() for each in coded])
        assert whole.shape == shape, f"{shape} has other elements than its {len(parts)} parts"
        return whole

    def take_scales(self, name: str, count: int) -> torch.Tensor | None:
        """Return scales, see `ScaleSource`.

        Raises:
            CheckpointError: they are another number of them, or not finite and above 0, or cannot
                be read.
        """
        stored = self._tensors.get(name)
        if stored is None:
            return None
        if stored.shape not in ((), (1,), (count,)):
            raise CheckpointError(
                self._path, f"tensor {name} is {list(stored.shape)}, must be [], [1] or [{count}]"
            )
        scales = self.take([Part(name, stored.shape)], stored.shape, torch.float32).reshape(-1)
        if not (scales.isfinite() & (scales > 0)).all():
            raise CheckpointError(
                self._path, f"tensor {name} is {scales.tolist()}, must be finite and above 0"
            )
        return scales.expand(count).contiguous()

    def check_all_taken(self) -> None:
        """Raise CheckpointError if the files hold a tensor that nothing asked for.

        A tensor left over means that the decoder computes something else than the checkpoint
        describes.
        """
        self._left = {name for name in sorted(self._left) if not self._is_zero_bias(name)}
        if self._left:
            shown = ", ".join(sorted(self._left)[:5])
            raise CheckpointError(self._path, f"{len(self._left)} tensors have no use: {shown}")

    def _check(self, parts: Sequence[Part]) -> None:
        """Hold tensors against what is wanted, before memory is taken for what a file claims."""
        for part in parts:
            name = self._coded_name(part)
            if name is None:
                for each in _stored_parts(part):
                    self._stored(each)
                continue
            for wanted in self._wanted(name, part):
                self._stored_code(name, wanted)

    def _coded_name(self, part: Part) -> str | None:
        """Return the name of a projection that is quantised; None: it is not."""
        name = part.name.removesuffix(_WEIGHT)
        if self._scheme is None or name == part.name or len(part.shape) != 2:
            return None
        return name if self._scheme.has(name, self._tensors) else None

    def _coded(self, part: Part) -> CodedWeight:
        """Read a quantised weight; its tensors count as taken."""
        name = self._coded_name(part)
        assert name is not None, "the caller has asked"
        assert self._scheme is not None, "so there is one"
        found: dict[str, torch.Tensor] = {}
        pieces: list[Piece] = []
        for wanted in self._wanted(name, part):
            if (stored := self._stored_code(name, wanted)) is None:
                continue
            self._left.discard(f"{name}.{wanted.suffix}")
            dtype = DTYPES.get(stored.dtype) or CODE_DTYPES[stored.dtype]
            tensor = torch.empty(stored.shape, dtype=dtype, device=self._device)
            found[wanted.suffix] = tensor
            pieces.append(Piece(stored.path, stored.offset, dtype, tensor.view(-1)))
        self._read(pieces)
        try:
            weight = self._scheme.weight((part.shape[0], part.shape[1]), found)
        except ValueError as error:
            raise CheckpointError(self._path, f"tensor {part.name}: {error}") from error
        return replace(weight, dtype=self._dtype)

    def _wanted(self, name: str, part: Part) -> Sequence[Wanted]:
        assert self._scheme is not None, "the caller has asked"
        try:
            return self._scheme.wanted((part.shape[0], part.shape[1]))
        except ValueError as error:
            raise CheckpointError(self._path, f"{name} {error}") from error

    def _stored_code(self, name: str, wanted: Wanted) -> StoredTensor | None:
        """Return a tensor of a quantised weight, None if it may be missing; raise if it is none."""
        full_name = f"{name}.{wanted.suffix}"
        stored = self._tensors.get(full_name)
        if stored is None:
            if wanted.is_optional:
                return None
            raise CheckpointError(self._path, f"tensor {full_name} is missing")
        if stored.shape not in wanted.shapes or stored.dtype not in wanted.dtypes:
            shapes = " or ".join(str(list(shape)) for shape in wanted.shapes)
            raise CheckpointError(
                self._path,
                f"tensor {full_name} is {stored.dtype} {list(stored.shape)}, {self._scheme} has "
                f"{' or '.join(wanted.dtypes)} {shapes} here",
            )
        return stored

    def _is_zero_bias(self, name: str) -> bool:
        """Tell whether it is a bias of nothing, as old exports write beside quantised weights."""
        stored, projection = self._tensors[name], name.removesuffix(_BIAS)
        if (
            self._scheme is None
            or projection == name
            or stored.num_bytes > _MAX_ZERO_BIAS_BYTES
            or stored.dtype not in DTYPES
            or not self._scheme.has(projection, self._tensors)
        ):
            return False
        bias = torch.empty(math.prod(stored.shape), dtype=self._dtype, device=self._device)
        self._read([self._piece(_StoredPart(name, stored.shape, _NUMBERS), bias)])
        return not bias.any()

    def _read(self, pieces: Sequence[Piece]) -> None:
        for num_bytes in self._reader.read(pieces):
            self._num_loaded_bytes += num_bytes
            if self._on_progress is not None:
                self._on_progress(self._num_loaded_bytes, self._num_bytes)

    def _read_mxfp4(self, part: Part, wanted: torch.Tensor) -> None:
        """Fill ``[N]`` with the numbers of blocks and scales, which are held beside it."""
        blocks, scales = self._packed_mxfp4(part)
        values = wanted.view(*scales.shape[:-1], part.shape[-1])
        mxfp4.decode(blocks, scales, values)

    def _packed_mxfp4(self, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """Read blocks and scales, their rows in order; the dtype has room for their numbers."""
        held = []
        for each in _stored_parts(part):
            packed = torch.empty(each.shape, dtype=torch.uint8, device=self._device)
            self._read([self._piece(each, packed.view(-1))])
            held.append(packed if part.arrange is None else part.arrange(packed))
        blocks, scales = held
        self._check_scales(scales, part.scales)
        return blocks, scales

    def _check_scales(self, scales: torch.Tensor, name: str) -> None:
        """Raise CheckpointError if the dtype has no room for numbers with them."""
        highest = int(scales.max())
        if highest > mxfp4.largest_scale(self._dtype):
            dtype = str(self._dtype).removeprefix("torch.")
            remedy = "set the dtype to bfloat16, or " if self._dtype is torch.float16 else ""
            raise CheckpointError(
                self._path,
                f"tensor {name} has a scale of 2 ** {highest - mxfp4.EXPONENT_BIAS}, with which "
                f"numbers are too large for {dtype}; {remedy}copy the file again",
            )

    def _has_mxfp4_blocks(self, part: Part) -> bool:
        stored = self._tensors.get(part.name)
        return stored is not None and stored.dtype == mxfp4.GGUF_TYPE and part.arrange is None

    def _mxfp4_blocks(self, parts: Sequence[Part], shape: tuple[int, int]) -> CodedWeight:
        """Read rows that are stored as blocks of a GGUF file."""
        num_rows, width = shape
        size = (num_rows, width // mxfp4.BLOCK, mxfp4.GGUF_BYTES)
        blocks = torch.empty(size, dtype=torch.uint8, device=self._device)
        rows = blocks.split_with_sizes([part.shape[0] for part in parts])
        pieces = []
        for part, wanted in zip(parts, rows, strict=True):
            stored = self._tensors[part.name]
            self._left.discard(part.name)
            pieces.append(Piece(stored.path, stored.offset, torch.uint8, wanted.view(-1)))
        self._read(pieces)
        self._check_scales(blocks[..., 0], parts[0].name)
        return mxfp4.gguf_as_codes(blocks, self._dtype)

    def _piece(self, part: "_StoredPart", destination: torch.Tensor) -> Piece:
        """Return how to read a tensor whole; it counts as taken."""
        stored, kind = self._stored(part)
        self._left.discard(part.name)
        return Piece(stored.path, stored.offset, kind, destination, stored.shift)

    def _stored(self, part: "_StoredPart") -> tuple[StoredTensor, torch.dtype | BlockFormat]:
        """Return a tensor of the files and how it is stored; raise unless it is as wanted."""
        name, stored = part.name, self._tensors.get(part.name)
        if stored is None:
            raise CheckpointError(self._path, f"tensor {name} is missing{self._missing_hint}")
        if stored.shape != part.shape:
            raise CheckpointError(
                self._path,
                f"tensor {name} is {list(stored.shape)}, the configuration says {list(part.shape)}",
            )
        kind = part.kinds.get(stored.dtype)
        if kind is None:
            known = ", ".join(part.kinds)
            raise CheckpointError(
                self._path, f"tensor {name} is {stored.dtype}, must be one of {known}"
            )
        return stored, kind


@dataclass(frozen=True, slots=True)
class _StoredPart:
    """One tensor of the files: its name, its shape there, and how it may be stored."""

    name: str
    shape: tuple[int, ...]
    kinds: Mapping[str, torch.dtype | BlockFormat]


def _stored_parts(part: Part) -> tuple[_StoredPart, ...]:
    """Return the tensor that a part is, or its blocks and its scales."""
    if not part.scales:
        return (_StoredPart(part.name, part.shape, _NUMBERS),)
    *rows, width = part.shape
    shape = (*rows, width // mxfp4.BLOCK)
    return (
        _StoredPart(part.name, (*shape, mxfp4.BLOCK_BYTES), PACKED_DTYPES),
        _StoredPart(part.scales, shape, PACKED_DTYPES),
    )


def _num_elements(part: Part) -> int:
    if part.arrange is None or part.scales:
        return math.prod(part.shape)
    return part.arrange(torch.empty(part.shape, device="meta")).numel()
