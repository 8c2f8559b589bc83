"""What a gateway must know of a model, as its decode workers' heartbeats describe it.

Known by every room. Knows no tokenizer and no request.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_gateway.errors import InvalidRequestError

MAX_NAMED_IDS = 50


@dataclass(frozen=True, slots=True)
class KvCost:
    """What KV of a model takes in the memory of a worker.

    Attributes:
        dtype: of its numbers, e.g. ``int8``; empty: not said.
        block_bytes: of one block, all layers.
        window: latest tokens whose blocks a sequence holds whole; None: all of them.
        block_bytes_behind_window: that it holds of each earlier block.
    """

    dtype: str = ""
    block_bytes: int = 0
    window: int | None = None
    block_bytes_behind_window: int = 0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a gateway must know of a model.

    Attributes:
        name: its own, whose files and workers it has; clients may also ask for its aliases.
        kv_identity: root of the block hashes, 16 bytes.
        block_size: tokens in one block.
        max_model_len: prompt + output tokens; the least that a decode worker alive can keep.
        vocab_size: token ids are below it.
        embedding_size: numbers in an embedding.
        created_unix_seconds: when this gateway first heard of it.
        quantization: of the weights: ``none``, or the format's name.
        kv: what its KV takes.
        adapter: name of the LoRA adapter that is asked for with it; empty: none.
        adapter_digest: of its content; part of the root of the block hashes.
    """

    name: str
    kv_identity: bytes
    block_size: int
    max_model_len: int
    vocab_size: int
    embedding_size: int
    created_unix_seconds: int
    quantization: str = "none"
    kv: KvCost = KvCost()
    adapter: str = ""
    adapter_digest: bytes = b""

    @property
    def full_name(self) -> str:
        """What answers and accounts say: its name, and its adapter's."""
        return f"{self.name}:{self.adapter}" if self.adapter else self.name

    def check_token_ids(self, token_ids: Sequence[int], *, param: str) -> None:
        """Raise InvalidRequestError for `param` unless every id is in the vocabulary."""
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self.vocab_size):
            bad = (str(i) for i in token_ids if not 0 <= i < self.vocab_size)
            named = ", ".join(itertools.islice(bad, MAX_NAMED_IDS))
            raise InvalidRequestError(
                f"'{param}' has token id {named}; the vocabulary has ids 0 to "
                f"{self.vocab_size - 1} (vocab_size {self.vocab_size})",
                param=param,
            )
