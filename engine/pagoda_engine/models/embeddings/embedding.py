"""Rows by token id.

A tied embedding is the output projection. Where that one is packed, rows are looked up in what is
packed: it is held once.
"""

import torch
import torch.nn.functional as F

from pagoda_kernels.native.packed_linear import PackedLinear


class Embedding:
    """A table ``[V, hidden]``. Owns its weight, packed or not.

    Attributes:
        weight: the table, or the packed projection that holds it.
        dtype: of a row.
    """

    __slots__ = ("dtype", "weight")

    def __init__(self, weight: torch.Tensor | PackedLinear) -> None:
        """Take over a weight; one that is packed holds no codes and has no gate."""
        self.weight = weight
        self.dtype = weight.dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[T, hidden]`` for ``[T]`` int64."""
        if isinstance(self.weight, PackedLinear):
            return self.weight.rows(token_ids)
        return F.embedding(token_ids, self.weight)
