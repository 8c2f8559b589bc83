"""What a worker serves: a model's limits and the identity of its KV.

Values, said once the engine is loaded. Knows no sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.rpc.v1 import status_pb2
from pagoda_engine import Engine, EngineConfig
from pagoda_engine.cache import LayerGroups
from pagoda_runtime.block_hash import kv_identity


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its worker runs it.

    Attributes:
        name: that clients use.
        kv_identity: workers with the same one can swap blocks.
        config: the engine's limits.
        max_model_len: tokens of one sequence at most.
        vocab_size: token ids are below it.
        embedding_size: numbers in an embedding.
        block_bytes: of one KV block, all layers.
        kv_window: latest tokens whose blocks a sequence holds whole; 0: all of them.
        block_bytes_behind_window: of each earlier block that it holds.
        dtype: of activations, e.g. ``bfloat16``.
        quantization: of weights: ``none``; ``int8`` or ``int4``, given as they were read; or the
            checkpoint's own, as ``awq-int4``.
        kv_cache_dtype: of KV, e.g. ``float8_e4m3fn``.
        aliases: further names that clients may use.
        kv_groups: of layers, where blocks lose parts behind windows.
        shares_processors: other workers of this machine compute on the same ones.
    """

    name: str
    kv_identity: bytes
    config: EngineConfig
    max_model_len: int
    vocab_size: int
    embedding_size: int
    block_bytes: int
    dtype: str
    quantization: str = "none"
    kv_cache_dtype: str = ""
    aliases: tuple[str, ...] = ()
    kv_window: int = 0
    block_bytes_behind_window: int = 0
    kv_groups: LayerGroups | None = None
    shares_processors: bool = False

    @classmethod
    def of(cls, engine: Engine, name: str, aliases: Sequence[str] = ()) -> "ServedModel":
        """Return what an engine serves under a name and its aliases."""
        model, layout = engine.model, engine.kv_cache.layout
        groups, window = layout.groups, model.description.kv_window or 0
        return cls(
            name=name,
            kv_identity=kv_identity(fingerprint=model.fingerprint, layout=engine.layout),
            config=engine.config,
            max_model_len=engine.max_model_len,
            vocab_size=model.vocab_size,
            embedding_size=model.description.hidden_size,
            block_bytes=layout.block_bytes,
            dtype=str(model.dtype).removeprefix("torch."),
            quantization=model.quantization_name,
            kv_cache_dtype=str(model.kv_dtype).removeprefix("torch."),
            aliases=tuple(aliases),
            kv_window=window if groups is None else groups.window,
            block_bytes_behind_window=0 if groups is None else layout.place_bytes,
            kv_groups=groups,
            shares_processors=engine.shares_processors,
        )

    @property
    def block_size(self) -> int:
        """Tokens of one KV block."""
        return self.config.block_size

    def card(self) -> status_pb2.ModelCard:
        """Return the wire's form."""
        return status_pb2.ModelCard(
            name=self.name,
            kv_identity=self.kv_identity,
            block_size=self.block_size,
            block_bytes=self.block_bytes,
            kv_window=self.kv_window,
            block_bytes_behind_window=self.block_bytes_behind_window,
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            embedding_size=self.embedding_size,
            dtype=self.dtype,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
            aliases=self.aliases,
        )
