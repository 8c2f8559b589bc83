"""What a model's files say, whatever their format: a Hugging Face folder, or one GGUF file."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pagoda_engine.checkpoints.config_reader import ConfigReader
from pagoda_engine.checkpoints.copied_tensor import is_copy
from pagoda_engine.checkpoints.fingerprint import fingerprint
from pagoda_engine.checkpoints.quantised.config import SUPPORTED, read_scheme
from pagoda_engine.checkpoints.quantised.scheme import Scheme
from pagoda_engine.checkpoints.safetensors_header import StoredTensor
from pagoda_engine.checkpoints.weights import tensor_names, tensors_of, weight_files
from pagoda_engine.errors import CheckpointError, UnsupportedModelError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.registry import describe
from pagoda_engine.models.gguf.model import GgufModel
from pagoda_formats.gguf_file import is_gguf

logger = logging.getLogger(__name__)


class ModelFiles(Protocol):
    """One model on disk. Reads no tensor, but to see whether one is a copy of another."""

    @property
    def description(self) -> DecoderDescription:
        """The decoder; `names` are those of `tensors`."""
        ...

    @property
    def model_type(self) -> str:
        """What transformers calls the family; empty: the files do not say."""
        ...

    @property
    def scheme(self) -> Scheme | None:
        """How weights are quantised in `tensors`, if that is not a tensor's own type."""
        ...

    @property
    def quantization(self) -> str:
        """What the weights are in the files: ``none``, or a format, as ``awq-int4``."""
        ...

    def tensors(self) -> Mapping[str, StoredTensor]:
        """Return where the tensors lie, by name.

        Raises:
            CheckpointError: one cannot be read, or files are missing or damaged.
        """
        ...

    def eos_token_ids(self) -> frozenset[int]:
        """Return the tokens that end an output; raises as `tensors`."""
        ...

    def fingerprint(self, differs_by: bytes) -> bytes:
        """Return 16 bytes that are the model's identity; see `checkpoints.fingerprint`."""
        ...


def open_model(path: Path) -> ModelFiles:
    """Read the configuration of a folder or a GGUF file.

    Raises:
        UnsupportedModelError: an architecture or option that the decoder does not implement.
        CheckpointError: it is missing or damaged, or a field is missing or out of range.
    """
    return GgufModel(path) if is_gguf(path) else HuggingFaceFolder(path)


class HuggingFaceFolder:
    """``config.json``, ``generation_config.json`` and safetensors files."""

    def __init__(self, folder: Path) -> None:
        """Read the configuration; raises as `open_model`."""
        self._folder = folder
        self._config = ConfigReader.open(folder / "config.json")
        self.description = describe(self._config)
        self.model_type = self._config.string("model_type", "")
        if self.description.tie_word_embeddings and self._has_own_output():
            logger.info(
                "the output projection of the files is used: it is not the embedding, although "
                "tie_word_embeddings of config.json, or its default, says so"
            )
            self.description = replace(self.description, tie_word_embeddings=False)
        self.scheme = read_scheme(self._config)
        if self.scheme is not None and self.description.names.is_transposed:
            architecture = f"{self.scheme} of {self.description.architecture}"
            raise UnsupportedModelError(
                self._config.path,
                "quantization_config",
                architecture,
                tuple(f"{each} of other families" for each in SUPPORTED),
            )

    @property
    def quantization(self) -> str:
        """See `ModelFiles`."""
        experts = self.description.experts
        if self.scheme is None and experts is not None and experts.stored != "dense":
            return experts.stored
        return "none" if self.scheme is None else self.scheme.label

    def _has_own_output(self) -> bool:
        """Tell whether an output projection is stored that is no copy of the embedding.

        Then it is used, as by transformers, whatever the configuration says: a merged fine-tune
        has trained it. Some exports repeat the tied tensor.
        """
        names = self.description.names
        output = f"{names.output}.weight"
        if output not in {names.renamed(name) for name in tensor_names(self._folder)}:
            return False
        try:
            tensors = self.tensors()
        except CheckpointError:  # said when they are loaded; random weights need no files
            return False
        if output not in tensors:
            return False
        embedding = f"{names.embedding}.weight"
        bare = embedding.removeprefix(names.optional_prefix)
        other = tensors.get(embedding, tensors.get(bare))
        return other is None or not is_copy(tensors[output], other)

    def tensors(self) -> Mapping[str, StoredTensor]:
        """See `ModelFiles`."""
        renamed = self.description.names.renamed
        stored = tensors_of(weight_files(self._folder))
        return {renamed(name): tensor for name, tensor in stored.items()}

    def eos_token_ids(self) -> frozenset[int]:
        """Return the generation configuration's, which chat models extend, or else the model's."""
        generation_path = self._folder / "generation_config.json"
        if generation_path.is_file():
            generation = ConfigReader.open(generation_path)
            if generation.has("eos_token_id"):
                return generation.token_ids("eos_token_id")
        if not self._config.has("eos_token_id") and self._config.has("text_config"):
            return self._config.section("text_config").token_ids("eos_token_id")
        return self._config.token_ids("eos_token_id")

    def fingerprint(self, differs_by: bytes) -> bytes:
        """See `ModelFiles`."""
        return fingerprint(self._config.path, weight_files(self._folder), differs_by)
