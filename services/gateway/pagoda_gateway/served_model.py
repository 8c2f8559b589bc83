"""The model this gateway serves, as the decode workers' heartbeats describe it.

Known by every room. Knows no tokenizer and no request.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagoda.rpc.v1.status_pb2 import ModelCard, Role, WorkerStatus
from pagoda_gateway.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    UnavailableError,
    shorten,
)
from pagoda_runtime.status import WorkerDirectory

RETRY_AFTER_SECONDS = 2.0
MAX_NAMED_IDS = 50


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a gateway must know of a model.

    Attributes:
        name: what clients ask for.
        kv_identity: root of the block hashes, 16 bytes.
        block_size: tokens in one block.
        max_model_len: prompt + output tokens; the least that a decode worker alive can keep.
        vocab_size: token ids are below it.
        embedding_size: numbers in an embedding.
        created_unix_seconds: when this gateway first heard of it.
    """

    name: str
    kv_identity: bytes
    block_size: int
    max_model_len: int
    vocab_size: int
    embedding_size: int
    created_unix_seconds: int

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


class Catalog:
    """Knows the served model once a decode worker has announced it, also while none is alive.

    A heartbeat that brings nothing new costs a comparison, however many workers there are.
    """

    def __init__(
        self,
        directory: WorkerDirectory,
        served_name: str,
        *,
        on_alive: Callable[[int], None] = lambda num_workers: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Follow `directory`; tell `on_alive` when another number of workers serves the model."""
        self._served_name = served_name
        self._on_alive = on_alive
        self._clock = clock
        self._model: ServedModel | None = None
        self._cards: dict[str, tuple[bytes, int]] = {}  # worker -> identity and longest sequence
        directory.add_listener(self._on_status)
        for status in directory.alive():
            self._on_status(status.worker_id, status)

    @property
    def model(self) -> ServedModel | None:
        """The served model; None until a decode worker announced it."""
        return self._model

    def get(self, name: str) -> ServedModel:
        """Return the model called `name`.

        Raises:
            ModelNotFoundError: this gateway does not serve it.
            UnavailableError: it does, but no worker has announced it yet.
        """
        if name != self._served_name:
            raise ModelNotFoundError(
                f"The model {shorten(name)} does not exist here; this server has "
                f"'{self._served_name}'",
                param="model",
            )
        if self._model is None:
            raise UnavailableError(
                f"no decode worker serves '{name}' yet; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return self._model

    def _on_status(self, worker_id: str, status: WorkerStatus | None) -> None:
        num_before = len(self._cards)
        if status is None:
            if self._cards.pop(worker_id, None) is None:
                return
        elif not self._is_served(status):
            return
        else:
            card = status.model.kv_identity, status.model.max_model_len
            if self._cards.get(worker_id) == card:
                return
            self._cards[worker_id] = card
            self._learn(status.model)
        self._fit_limit()
        if len(self._cards) != num_before:
            self._on_alive(len(self._cards))

    def _is_served(self, status: WorkerStatus) -> bool:
        return status.role == Role.ROLE_DECODE and status.model.name == self._served_name

    def _learn(self, card: ModelCard) -> None:
        if self._model is None or self._model.kv_identity != card.kv_identity:
            self._model = ServedModel(
                name=card.name,
                kv_identity=card.kv_identity,
                block_size=card.block_size,
                max_model_len=card.max_model_len,
                vocab_size=card.vocab_size,
                embedding_size=card.embedding_size,
                created_unix_seconds=int(self._clock()),
            )

    def _fit_limit(self) -> None:
        """Let the limit be what every decode worker can keep: they may have unequal KV pools."""
        model = self._model
        if model is None:
            return
        limits = [
            limit for identity, limit in self._cards.values() if identity == model.kv_identity
        ]
        if limits and min(limits) != model.max_model_len:
            self._model = replace(model, max_model_len=min(limits))
