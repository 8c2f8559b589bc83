"""``x @ weight.T + bias``, with the weight kept in the form that serves this device best.

On CPU the weight is packed once for oneDNN. `torch.nn.functional.linear` repacks a bf16 weight at
every call; the packed product is up to twice as fast. How a row's sums are ordered, and so its last
bits, may depend on how many rows come with it: in fp32 beyond K = 1024, in bf16 where oneDNN takes
another unit of the processor (AMX) for many rows. The packing operators are private to torch, so
they are tried at start and `F.linear` is the fallback.
"""

import functools
import logging

import torch
import torch.nn.functional as F

_LOGGER = logging.getLogger(__name__)

_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
_PACKED_BATCH = 8  # rows the packing is tuned for; it is correct for any number


class Linear:
    """One projection. Owns its weight, packed or not."""

    __slots__ = ("_bias", "_multiply", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take over a weight.

        Args:
            weight: ``[N, K]`` on the engine's device and in its dtype.
            bias: ``[N]`` or None.
        """
        self._bias = bias
        self._multiply = None
        self._weight = weight
        if weight.device.type == "cpu" and can_pack(weight.dtype):
            self._multiply = torch.ops.mkldnn._linear_pointwise.default
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_BATCH)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]``."""
        if self._multiply is None:
            return F.linear(x, self._weight, self._bias)
        y: torch.Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return y


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Tell whether torch's packed product is there and right for this dtype on this processor."""
    if dtype not in _TOLERANCES:
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 32, generator=generator).to(dtype)
    x = torch.randn(3, 32, generator=generator).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_BATCH)
        found = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, TypeError) as error:
        _LOGGER.info("no packed %s projections on this machine: %s", dtype, error)
        return False
    expected = F.linear(x.float(), weight.float())
    tolerance = _TOLERANCES[dtype]
    return bool(torch.allclose(found.float(), expected, rtol=tolerance, atol=tolerance))
