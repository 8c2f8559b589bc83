"""``x @ weight.T + bias``, with the weight kept in the form that serves this device best.

On CPU the weight is packed once for oneDNN. `torch.nn.functional.linear` repacks a bf16 weight at
every call; the packed product is up to twice as fast. How a row's sums are ordered, and so its last
bits, may depend on how many rows come with it: in fp32 beyond K = 1024, in bf16 where oneDNN takes
another unit of the processor (AMX) for many rows. The packing operators are private to torch, so
they are tried at start and `F.linear` is the fallback.

For every number of rows oneDNN compiles a product of its own, in half a millisecond, and keeps it
with half a MiB: a GiB for all steps of up to 512 tokens. So numbers are rounded up to few, which
`warm_up` computes before there is work.
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
        num_rows = len(x)
        if (num_computed := rounded_rows(num_rows)) > num_rows:
            x = _with_zero_rows(x, num_computed)
        y: torch.Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return y[:num_rows]

    @property
    def shape(self) -> tuple[int, int, bool]:
        """N, K, and whether there is a bias: linears of one shape share what is compiled."""
        return self._weight.shape[0], self._weight.shape[1], self._bias is not None

    def warm_up(self, max_rows: int) -> None:
        """Compile all that up to `max_rows` rows need. Each thread keeps some of it for itself."""
        if self._multiply is None:
            return
        rows = torch.zeros(rounded_rows(max_rows), self._weight.shape[1], dtype=self._weight.dtype)
        for num_rows in {rounded_rows(number) for number in range(1, max_rows + 1)}:
            self(rows[:num_rows])


def rounded_rows(num_rows: int) -> int:
    """Rows that a product of so many computes: up to 16 the same, above at most an eighth more."""
    step = 1 << max(0, (num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


def _with_zero_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return ``[num_rows, K]``: the rows of x, then zeros."""
    rows = x.new_empty(num_rows, x.shape[1])
    rows[: len(x)] = x
    rows[len(x) :] = 0
    return rows


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
