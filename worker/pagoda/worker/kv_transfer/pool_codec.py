"""Pool handles and kinds of digests between our types and their messages."""

import enum

from pagoda.engine.cache.peer_pool import PeerPoolError, PoolHandle, PoolKind
from pagoda.rpc.v1 import kv_transfer_pb2
from pagoda.worker.errors import LeaseMismatchError

_KINDS = {
    PoolKind.SHARED_MEMORY: kv_transfer_pb2.POOL_KIND_SHARED_MEMORY,
    PoolKind.CUDA_IPC: kv_transfer_pb2.POOL_KIND_CUDA_IPC,
    PoolKind.NIXL: kv_transfer_pb2.POOL_KIND_NIXL,
}
_KINDS_BACK = {value: kind for kind, value in _KINDS.items()}


class DigestKind(enum.Enum):
    """How a push's blocks are digested."""

    XXH3 = kv_transfer_pb2.DIGEST_XXH3_128  # on the host
    MULTILINEAR = kv_transfer_pb2.DIGEST_MULTILINEAR_128  # pagoda.kernels, on the blocks' device


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


def digest_kind(message: "kv_transfer_pb2.Digest.ValueType") -> DigestKind:
    """Return the kind of digest that a header names.

    Raises:
        LeaseMismatchError: this version does not know it.
    """
    try:
        return DigestKind(message or kv_transfer_pb2.DIGEST_XXH3_128)
    except ValueError as error:
        raise LeaseMismatchError(f"digests of kind {message} are not known here") from error
