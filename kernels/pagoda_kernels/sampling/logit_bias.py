"""What one sequence adds to logits of its own: kept on its device, nothing is made of it anew."""

import struct
from collections.abc import Mapping

import numpy as np
import torch

from pagoda_kernels.host_copy import to_device

_DENSE_SHARE = 1 / 4
"""Of the tokens up to the last: where as many have a bias, a CPU adds a vector faster."""


class LogitBias:
    """Tokens and what is added to the logit of each.

    Attributes:
        end: all token ids are below it.
        record: of `native.structures`, as the library reads it; means nothing on a GPU.
    """

    __slots__ = ("_biases", "_token_ids", "end", "record")

    def __init__(self, bias: Mapping[int, float], device: torch.device) -> None:
        """Copy it there, without waiting for it.

        Args:
            bias: token id >= 0 -> finite bias.
            device: of the logits.

        Raises:
            ValueError: a token id is negative.
        """
        token_ids = np.fromiter(bias, np.int64, len(bias))
        biases = np.fromiter(bias.values(), np.float32, len(bias))
        order = token_ids.argsort()
        token_ids, biases = token_ids[order], biases[order]
        if len(bias) and token_ids[0] < 0:
            raise ValueError(f"token ids: expected 0 or more, got {token_ids[0]}")
        self.end = int(token_ids[-1]) + 1 if len(bias) else 0
        self._token_ids: torch.Tensor | None = None  # it is a vector
        if device.type == "cpu" and len(bias) >= self.end * _DENSE_SHARE:
            vector = np.full(self.end, -0.0, np.float32)  # which changes nothing, not even -0.0
            vector[token_ids] = biases
            self._biases = torch.from_numpy(vector)
        else:
            self._token_ids, self._biases = to_device([token_ids, biases], device)
        ids = 0 if self._token_ids is None else self._token_ids.data_ptr()
        self.record = struct.pack("QQq", ids, self._biases.data_ptr(), len(self._biases))

    def add_to(self, logits: torch.Tensor) -> None:
        """Change one row, float32 ``[V]`` on the device; V is `end` at least."""
        if self._token_ids is None:
            logits[: self.end] += self._biases
        else:
            logits.scatter_add_(0, self._token_ids, self._biases)
