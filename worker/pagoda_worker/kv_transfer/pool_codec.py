"""Pool handles, answers to them and kinds of digests between our types and the wire."""

import enum
from collections.abc import Iterable

from pagoda.rpc.v1 import kv_transfer_pb2
from pagoda_engine.cache import PeerPoolError, PoolHandle, PoolKind
from pagoda_worker.errors import LeaseMismatchError

_KINDS = {
    PoolKind.SHARED_MEMORY: kv_transfer_pb2.POOL_KIND_SHARED_MEMORY,
    PoolKind.CUDA_IPC: kv_transfer_pb2.POOL_KIND_CUDA_IPC,
    PoolKind.NIXL: kv_transfer_pb2.POOL_KIND_NIXL,
}
_KINDS_BACK = {value: kind for kind, value in _KINDS.items()}

_ANSWER_KEY = "pagoda-kv-pool"
_ANSWERS = {True: "open", False: "closed"}


class DigestKind(enum.Enum):
    """How a push's blocks are digested."""

    XXH3 = kv_transfer_pb2.DIGEST_XXH3_128  # on the host
    MULTILINEAR = kv_transfer_pb2.DIGEST_MULTILINEAR_128  # pagoda_kernels, on the blocks' device


def pool_message(handle: PoolHandle) -> kv_transfer_pb2.PoolHandle:
    """Return a handle's message."""
    return kv_transfer_pb2.PoolHandle(
        kind=_KINDS[handle.kind],
        memory=handle.memory,
        num_bytes=handle.num_bytes,
        offset=handle.offset,
        num_blocks=handle.num_blocks,
        layout=handle.layout,
        device=handle.device,
        host=handle.host,
    )


def pool_handle(message: kv_transfer_pb2.PoolHandle) -> PoolHandle:
    """Return the handle of a message.

    Raises:
        PeerPoolError: a kind that this version does not know.
    """
    kind = _KINDS_BACK.get(message.kind)
    if kind is None:
        raise PeerPoolError(f"pools of kind {message.kind} are not known here")
    return PoolHandle(
        kind=kind,
        memory=message.memory,
        num_bytes=message.num_bytes,
        offset=message.offset,
        num_blocks=message.num_blocks,
        layout=message.layout,
        device=message.device,
        host=message.host,
    )


def pool_answer(is_open: bool) -> tuple[tuple[str, str], ...]:
    """Return the initial metadata by which a consumer says whether it reads from a pool."""
    return ((_ANSWER_KEY, _ANSWERS[is_open]),)


def is_pool_open(metadata: Iterable[tuple[str, str | bytes]]) -> bool | None:
    """Return what a consumer said; None: nothing, as when it refuses the push."""
    answer = dict(metadata).get(_ANSWER_KEY)
    return next((is_open for is_open, text in _ANSWERS.items() if text == answer), None)


def digest_kind(message: "kv_transfer_pb2.Digest.ValueType") -> DigestKind:
    """Return the kind of digest that a header names.

    Raises:
        LeaseMismatchError: this version does not know it.
    """
    try:
        return DigestKind(message or kv_transfer_pb2.DIGEST_XXH3_128)
    except ValueError as error:
        raise LeaseMismatchError(f"digests of kind {message} are not known here") from error
