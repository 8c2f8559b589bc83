"""Whether a file holds a tensor that is stored elsewhere, too, as exports repeat tied ones."""

from pagoda_engine.checkpoints.safetensors_header import StoredTensor
from pagoda_engine.errors import CheckpointError

_COMPARED_BYTES = 16 << 20  # at a time


def is_copy(tensor: StoredTensor, other: StoredTensor) -> bool:
    """Tell whether two tensors are stored as the same bytes; reads them up to what differs.

    Raises:
        CheckpointError: a file cannot be read.
    """
    if (tensor.dtype, tensor.shape, tensor.shift) != (other.dtype, other.shape, other.shift):
        return False
    try:
        with tensor.path.open("rb") as file, other.path.open("rb") as other_file:
            file.seek(tensor.offset)
            other_file.seek(other.offset)
            left = tensor.num_bytes
            while left > 0:
                size = min(left, _COMPARED_BYTES)
                if file.read(size) != other_file.read(size):
                    return False
                left -= size
    except OSError as error:
        raise CheckpointError(tensor.path, f"cannot be read: {error.strerror}") from error
    return True
