"""A GGUF file as a model: what `ModelFiles` asks for, from its head."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pagoda_engine.checkpoints.block_formats import BLOCK_FORMATS
from pagoda_engine.checkpoints.fingerprint import fingerprint_of_file
from pagoda_engine.checkpoints.safetensors_header import StoredTensor
from pagoda_engine.errors import CheckpointError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families.registry import describe
from pagoda_engine.models.gguf.config import gguf_config
from pagoda_engine.models.gguf.names import gguf_names
from pagoda_engine.models.gguf.tensors import stored_tensors_of
from pagoda_engine.models.rope_scaling import RopeDescription
from pagoda_formats.errors import FormatError
from pagoda_formats.gguf_file import GgufFile, read_gguf

_END_FIELDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|END_OF_TURN_TOKEN|>",
    }
)
"""Tokens that end a turn wherever they are in a vocabulary. Most files name only one end, though
their models were trained to say several."""

_CONTROL = 3


class GgufModel:
    """One file."""

    model_type = ""
    scheme = None

    def __init__(self, path: Path) -> None:
        """Read the head.

        Raises:
            CheckpointError: see `open_model`.
        """
        try:
            self._file = read_gguf(path)
        except FormatError as error:
            raise CheckpointError(error.path, error.reason) from error
        config, self._architecture = gguf_config(self._file)
        description = describe(config)
        if self._architecture.has_pairs_together:
            description = _with_pairs_together(description)
        self.description: DecoderDescription = replace(
            description,
            names=gguf_names(
                description.names,
                second_norm=self._architecture.second_norm,
                has_heads_apart="blk.0.attn_k_b.weight" in self._file.tensors,
                has_qkv_joined="blk.0.attn_qkv.weight" in self._file.tensors,
            ),
            qkv_bias=_has_bias(self._file, "attn_q") or _has_bias(self._file, "attn_qkv"),
            output_bias=_has_bias(self._file, "attn_output"),
            mlp_bias=_has_bias(self._file, "ffn_down"),
        )

    @property
    def quantization(self) -> str:
        """See `ModelFiles`; files mix types: the one that most weights have."""
        weights: Counter[str] = Counter()
        for tensor in self._file.tensors.values():
            weights[tensor.type_name] += math.prod(tensor.shape)
        most = weights.most_common(1)[0][0] if weights else ""
        return f"gguf-{most.lower()}" if most in BLOCK_FORMATS else "none"

    def tensors(self) -> Mapping[str, StoredTensor]:
        """See `ModelFiles`."""
        return stored_tensors_of(self._file, norm_shift=self._architecture.norm_shift)

    def eos_token_ids(self) -> frozenset[int]:
        """Return the ends that the file names, and control tokens that are known to be some."""
        metadata = self._file.metadata
        named = (metadata.get(f"tokenizer.ggml.{field}") for field in _END_FIELDS)
        found = {i for i in named if type(i) is int and 0 <= i < self.description.vocab_size}
        tokens, types = (
            metadata.get(f"tokenizer.ggml.{field}") for field in ("tokens", "token_type")
        )
        if isinstance(tokens, list) and isinstance(types, list):
            pairs = enumerate(zip(tokens, types, strict=False))
            found |= {i for i, (token, kind) in pairs if kind == _CONTROL and token in _ENDS}
        return frozenset(found)

    def fingerprint(self, differs_by: bytes) -> bytes:
        """See `ModelFiles`; covers the head whole, so the tokenizer, too."""
        begins = (tensor.offset for tensor in self._file.tensors.values())
        return fingerprint_of_file(self._file.path, self._file.head_bytes, begins, differs_by)


def _has_bias(file: GgufFile, projection: str) -> bool:
    return f"blk.0.{projection}.bias" in file.tensors


def _with_pairs_together(description: DecoderDescription) -> DecoderDescription:
    """Return it for rows of Q and K in llama.cpp's order; the builder brings them into ours."""

    def turned(rope: RopeDescription | None) -> RopeDescription | None:
        return None if rope is None else replace(rope, is_interleaved=True)

    return replace(
        description,
        rope=turned(description.rope),
        layer_ropes=tuple(turned(rope) for rope in description.layer_ropes),
    )
