"""Loads a Hugging Face folder: configuration, weights, end-of-sequence tokens, identity."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from pagoda.engine.config import EngineConfig
from pagoda.engine.errors import InvalidConfigError
from pagoda.engine.models.build_decoder import build_decoder
from pagoda.engine.models.config_reader import ConfigReader
from pagoda.engine.models.decoder import Decoder
from pagoda.engine.models.description import DecoderDescription, read_description
from pagoda.engine.models.fingerprint import fingerprint
from pagoda.engine.models.weights import WeightFiles, weight_files

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
        dtype: of weights, activations and KV.
        eos_token_ids: tokens that end an output unless a sequence ignores them.
        fingerprint: 16 bytes; equal only for the same configuration and weights.
    """

    description: DecoderDescription
    decoder: Decoder = field(repr=False)
    device: torch.device
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    fingerprint: bytes

    @property
    def vocab_size(self) -> int:
        """Token ids run over [0, vocab_size)."""
        return self.description.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence the model was made for."""
        return self.description.max_position_embeddings


def load_model(folder: Path, config: EngineConfig) -> LoadedModel:
    """Read a model folder and put its weights on ``config.device``; reads every weight file once.

    Raises:
        CheckpointError: the folder is incomplete, contradicts itself, or UnsupportedModelError.
        InvalidConfigError: device or dtype is unknown or not here.
    """
    description = read_description(folder / "config.json")
    device = _device(config.device)
    dtype = _dtype(config.dtype, description.dtype, device)
    paths = weight_files(folder)
    decoder = build_decoder(
        description,
        WeightFiles(paths, dtype, device),
        max_positions=min(description.max_position_embeddings, config.max_model_len),
        device=device,
    )
    return LoadedModel(
        description=description,
        decoder=decoder,
        device=device,
        dtype=dtype,
        eos_token_ids=_eos_token_ids(folder),
        fingerprint=fingerprint(folder / "config.json", paths),
    )


def _eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the generation configuration's, which chat models extend, or else the model's."""
    generation_path = folder / "generation_config.json"
    if generation_path.is_file():
        generation = ConfigReader.open(generation_path)
        if generation.has("eos_token_id"):
            return generation.token_ids("eos_token_id")
    return ConfigReader.open(folder / "config.json").token_ids("eos_token_id")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidConfigError("device", name, "cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidConfigError("device", name, "cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidConfigError("device", name, "cpu: no CUDA device is usable here")
    return device


def _dtype(wanted: str, checkpoint: str, device: torch.device) -> torch.dtype:
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
    # torch's fp16 projections on CPU are several times slower than its fp32 ones.
    return dtype is torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()
