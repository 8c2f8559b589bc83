"""Loads a model: configuration, weights, end-of-sequence tokens, identity."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.layer_groups import can_be_in_parts
from pagoda_engine.checkpoints.fingerprint import fingerprint
from pagoda_engine.checkpoints.safetensors_header import StoredTensor
from pagoda_engine.checkpoints.weight_reader import WeightReader
from pagoda_engine.checkpoints.weights import OnProgress, WeightFiles
from pagoda_engine.config import LOAD_FORMATS, EngineConfig
from pagoda_engine.errors import InvalidConfigError
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.kv.dtype import resolve_kv_dtype
from pagoda_engine.models.kv.measure import settle_scales
from pagoda_engine.models.model_files import ModelFiles, open_model
from pagoda_engine.models.quantization import NONE, Quantization, resolve_quantization
from pagoda_engine.models.weights.dummy import DummyWeights
from pagoda_engine.models.weights.names import WeightNames
from pagoda_formats.gguf_file import is_gguf
from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library

logger = logging.getLogger(__name__)

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. Several engines may share it.

    Attributes:
        description: shapes and options.
        decoder: the weights and the forward.
        device: where the weights are.
        dtype: of weights and activations.
        eos_token_ids: tokens that end an output unless a sequence ignores them.
        fingerprint: 16 bytes; equal only for the same configuration, weights and quantization.
        quantization: format that the projections' weights were given as they were read.
        files_quantization: format that they have in the files, see `ModelFiles.quantization`.
        stored_kv_dtype: of KV; None: `dtype`.
        kv_scales: of KV in one byte, see `KvLayout`.
    """

    description: DecoderDescription
    decoder: Decoder = field(repr=False)
    device: torch.device
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    fingerprint: bytes
    quantization: Quantization = NONE
    files_quantization: str = NONE.name
    stored_kv_dtype: torch.dtype | None = None
    kv_scales: str = ""

    @property
    def quantization_name(self) -> str:
        """What the weights are: the format that they were given, or else that of the files."""
        given = self.quantization.name
        return self.files_quantization if given == NONE.name else given

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of KV."""
        return self.stored_kv_dtype or self.dtype

    def kv_layout(self, block_size: int) -> KvLayout:
        """Return what KV blocks of so many tokens are: of every cache that the decoder is given."""
        layout = self.decoder.kv_layout(block_size, self.kv_dtype, self.kv_scales)
        return layout if can_be_in_parts(self.device.type) else layout.in_one_part()

    @property
    def vocab_size(self) -> int:
        """Token ids run over [0, vocab_size)."""
        return self.description.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence the model was made for."""
        return self.description.max_position_embeddings


def load_model(
    path: Path, config: EngineConfig, on_progress: OnProgress | None = None
) -> LoadedModel:
    """Read a model and put its weights on ``config.device``.

    Args:
        path: folder in Hugging Face layout, weights in safetensors files; or a GGUF file.
        config: device, dtypes, quantization and the longest sequence.
        on_progress: called in this thread after every chunk, of at most 16 MiB.

    Raises:
        CheckpointError: the model is incomplete, contradicts itself, or UnsupportedModelError.
        InvalidConfigError: device, a dtype, quantization or load format is unknown or not here.
    """
    model_files = open_model(path)
    description = model_files.description
    device = resolve_device(config.device)
    dtype = dtype_of(model_files, config.dtype, device)
    quantization = resolve_quantization(config.quantization)
    kv_dtype = resolve_kv_dtype(config.kv_cache_dtype, description, dtype)
    is_dummy = _is_dummy(path, config.load_format)
    _say_how_weights_are_held(quantization, dtype, device)
    if model_files.scheme is not None and not is_dummy:
        logger.info("the checkpoint's weights are quantised: %s", model_files.scheme)
    max_positions = min(description.max_position_embeddings, config.max_model_len)
    turning = description.for_length(max_positions)
    # The KV of a model whose rotation depends on the longest sequence is another one for each.
    differs_by = b"" if turning == description else repr(turning.ropes).encode()
    build = partial(
        build_decoder,
        turning,
        max_positions=max_positions,
        device=device,
        quantization=quantization,
        kv_dtype=kv_dtype,
    )
    if is_dummy:
        decoder = build(DummyWeights(dtype, device))
        identity = fingerprint(path / "config.json", (), differs_by + b"dummy")
    else:
        with ThreadPoolExecutor(1, "fingerprint") as thread, WeightReader(device) as reader:
            # Beside the loading, which brings the same bytes into the page cache.
            identified = thread.submit(model_files.fingerprint, differs_by)
            files = _weight_files(path, model_files, reader, dtype, device, on_progress)
            decoder = build(files)
            files.check_all_taken()
            identity = identified.result()
    scales = settle_scales(decoder, kv_dtype, device)
    return LoadedModel(
        description=turning,
        decoder=decoder,
        device=device,
        dtype=dtype,
        eos_token_ids=model_files.eos_token_ids(),
        fingerprint=quantization.fingerprint(identity),
        quantization=quantization,
        files_quantization=NONE.name if is_dummy else model_files.quantization,
        stored_kv_dtype=kv_dtype,
        kv_scales=scales,
    )


def _weight_files(
    path: Path,
    model_files: ModelFiles,
    reader: WeightReader,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: OnProgress | None,
) -> WeightFiles:
    names, tensors = model_files.description.names, model_files.tensors()
    _say_what_is_left_out(names, tensors)
    # Some exports repeat the tied tensor.
    tied = (f"{names.output}.weight",) if model_files.description.tie_word_embeddings else ()
    return WeightFiles(
        path,
        tensors,
        reader,
        dtype,
        device,
        scheme=model_files.scheme,
        ignored=(*tied, *names.ignored),
        ignored_prefixes=(*names.ignored_prefixes, *names.vision_prefixes),
        optional_prefix=names.optional_prefix,
        missing_hint=_other_family(model_files),
        on_progress=on_progress,
    )


def _other_family(model_files: ModelFiles) -> str:
    """Return what to add where a tensor is missing: some are saved under another family's class."""
    architecture, kind = model_files.description.architecture, model_files.model_type
    if kind.removesuffix("_text").replace("_", "") in architecture.lower():
        return ""
    return (
        f". model_type {kind!r} is not of {architecture}, as which it is read: such a model's "
        "tensors may have other names"
    )


def _is_dummy(path: Path, load_format: str) -> bool:
    """Tell whether weights shall be random, and say so.

    Raises:
        InvalidConfigError: the format is unknown, or the model has no ``config.json``.
    """
    if load_format not in LOAD_FORMATS:
        raise InvalidConfigError("load_format", load_format, "one of " + ", ".join(LOAD_FORMATS))
    if load_format != "dummy":
        return False
    if is_gguf(path):
        raise InvalidConfigError("load_format", load_format, "auto for a GGUF file")
    logger.warning("load_format is dummy: weights are random, outputs mean nothing: %s", path)
    return True


def _say_what_is_left_out(names: WeightNames, tensors: Mapping[str, StoredTensor]) -> None:
    further = "it predicts further tokens (multi-token prediction), which is not done here"
    for prefix in names.ignored_prefixes:
        _say_left_out(prefix.removesuffix("."), further, (prefix,), tensors)
    vision = "images are not read here, only the text part is served"
    _say_left_out("the vision part", vision, names.vision_prefixes, tensors)


def _say_left_out(
    what: str, why: str, prefixes: tuple[str, ...], tensors: Mapping[str, StoredTensor]
) -> None:
    sizes = [each.num_bytes for name, each in tensors.items() if name.startswith(prefixes)]
    if sizes:
        logger.info(
            "%s is left out: %s; %d tensors, %.1f MiB", what, why, len(sizes), sum(sizes) / 2**20
        )


def _say_how_weights_are_held(
    quantization: Quantization, dtype: torch.dtype, device: torch.device
) -> None:
    bits = quantization.projections
    if bits is None:
        return
    logger.info("weights are quantised as they are read: %s", quantization)
    if not packed_linear.can_pack(torch.empty(1, 2, dtype=dtype, device=device), bits):
        logger.warning(
            "there are no products with %s weights for %s on %s: they are held dense, with the "
            "values of their codes, and save neither memory nor time",
            quantization.name,
            str(dtype).removeprefix("torch."),
            device,
        )


def resolve_device(name: str) -> torch.device:
    """Return the device of that name.

    Raises:
        InvalidConfigError: it is unknown or not here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidConfigError("device", name, "cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidConfigError("device", name, "cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidConfigError(
            "device", name, f"cpu: torch {torch.__version__} finds no CUDA device"
        )
    return device


def dtype_of(model_files: ModelFiles, wanted: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a model; see `resolve_dtype`, whose errors it raises.

    A quantised checkpoint says float16 mostly. Where that is slow it is bfloat16, in which products
    take codes as they are, and not float32.
    """
    checkpoint = model_files.description.dtype
    if model_files.scheme is not None and checkpoint in ("float16", ""):
        is_fast = checkpoint and _is_fast(torch.float16, device)
        checkpoint = checkpoint if is_fast else "bfloat16"
    return resolve_dtype(wanted, checkpoint, device)


def resolve_dtype(wanted: str, checkpoint: str, device: torch.device) -> torch.dtype:
    """Return the dtype of that name; for ``auto`` the checkpoint's, if the device is fast at it.

    Raises:
        InvalidConfigError: it is unknown.
    """
    if wanted != "auto":
        if wanted not in _DTYPES:
            raise InvalidConfigError("dtype", wanted, "one of auto, " + ", ".join(_DTYPES))
        return _DTYPES[wanted]
    dtype = _DTYPES.get(checkpoint, torch.float32)
    return dtype if _is_fast(dtype, device) else torch.float32


def _is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type == "cuda":
        return dtype is not torch.bfloat16 or torch.cuda.is_bf16_supported(
            including_emulation=False
        )
    # torch's fp16 projections on CPU are several times slower than its fp32 ones; so are those of
    # bf16 where the processor has no products of it. Native ones read half the bytes of fp32.
    return dtype is torch.bfloat16 and (
        native_library() is not None or torch.cpu._is_avx512_bf16_supported()
    )
