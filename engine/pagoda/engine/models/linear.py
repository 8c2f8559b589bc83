"""``x @ weight.T + bias``, with the weight kept in the form that this device reads fastest.

On CPU oneDNN repacks a bf16 weight at every call of `torch.nn.functional.linear`; packed once it is
about twice as fast. The packing operators are private to torch, so they are tried at start and
`F.linear` is the fallback.
"""

import functools
import logging

import torch
import torch.nn.functional as F

_LOGGER = logging.getLogger(__name__)

_PACKED_DTYPES = (torch.bfloat16,)
_PACKED_BATCH = 8  # rows the packing is tuned for; it is correct for any number
_TOLERANCE = 0.05


class Linear:
    """One projection. Owns its weight, packed or not."""

    __slots__ = ("_bias", "_packed", "_weight", "num_rows")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take over a weight.

        Args:
            weight: ``[N, K]`` on the engine's device and in its dtype.
            bias: ``[N]`` or None.
        """
        self.num_rows = weight.shape[0]
        self._bias = bias
        self._weight: torch.Tensor | None = weight
        self._packed: torch.Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype in _PACKED_DTYPES and can_pack():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_BATCH)
            self._weight = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``."""
        if self._packed is not None:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._packed, self._bias, "none", [], ""
            )
            return y
        assert self._weight is not None
        return F.linear(x, self._weight, self._bias)


@functools.cache
def can_pack() -> bool:
    """Tell whether torch's packed bf16 projection is there and right on this processor."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 32, generator=generator).bfloat16()
    x = torch.randn(3, 32, generator=generator).bfloat16()
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_BATCH)
        found = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, TypeError) as error:
        _LOGGER.info("no packed bf16 projections on this machine: %s", error)
        return False
    expected = F.linear(x.float(), weight.float())
    return bool(torch.allclose(found.float(), expected, rtol=_TOLERANCE, atol=_TOLERANCE))
