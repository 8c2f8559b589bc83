"""``x @ weight.T + bias`` with a packed weight; each row's result depends on that row alone."""

import ctypes
from typing import Literal

import torch

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu
from pagoda_kernels.huge_pages import huge_zeros
from pagoda_kernels.native.library import NativeLibrary, native_library
from pagoda_kernels.native.packed_lora import PackedLora
from pagoda_kernels.native.quantised_weight import (
    LEVELS,
    Bits,
    QuantisedWeight,
    levels_table,
    quantise,
)
from pagoda_kernels.native.structures import Linear
from pagoda_kernels.native.twelve_bits import Exceptions, find_exceptions

DTYPES = (torch.bfloat16, torch.float32)
Activation = Literal["silu", "gelu", "gelu_tanh"]
Gate = ClampedSwiglu | Activation
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 2, "gelu": 3}
"""As product.h numbers them; `ClampedSwiglu` is 1."""


def can_pack(weight: torch.Tensor, bits: Bits | None = None) -> bool:
    """Tell whether a weight ``[N, K]`` can be packed on this machine, as codes of `bits` if any."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in DTYPES
        and (weight.shape[1] % 2 == 0 or (weight.dtype is torch.float32 and bits is None))
        and native_library() is not None
    )


class PackedLinear:
    """One projection. Owns its packed weight."""

    __slots__ = (
        "_bias", "_exceptions", "_levels", "_library", "_panels", "dtype", "is_gated", "lora",
        "num_outputs", "structure", "width",
    )  # fmt: skip

    def __init__(
        self,
        weight: torch.Tensor | QuantisedWeight,
        bias: torch.Tensor | None = None,
        *,
        is_gated: bool = False,
        gate: Gate = "silu",
        activation: Activation | None = None,
        bits: Bits | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Pack a weight for which `can_pack` holds.

        Args:
            weight: ``[N, K]``; with a gate ``[2 * N, K]``: rows of gate, then up.
            bias: as many elements as `weight` has rows, or None.
            is_gated: the result is ``silu(gate) * up``, both rounded before the product.
            gate: with `is_gated`, another activation or rule than that.
            activation: without a gate, of the result, which is rounded before it; None: there is
                none.
            bits: quantise it (see `quantised_weight`); the result has the dtype of `weight` still.
            dtype: of x and the result, for a weight that is quantised already; else its own.
        """
        library = native_library()
        assert library is not None, "can_pack was not asked"
        self._library: NativeLibrary = library
        assert not is_gated or activation is None, "a gate has its own"
        coded: QuantisedWeight | None
        if isinstance(weight, QuantisedWeight):
            assert dtype is not None, "codes are of no dtype"
            coded, shape, self.dtype = weight, weight.codes.shape, dtype
        else:
            coded = None if bits is None else quantise(weight, bits)
            shape, self.dtype = weight.shape, weight.dtype
        self.is_gated = is_gated
        self.lora: PackedLora | None = None
        self.num_outputs, self.width = shape[0] // (1 + is_gated), shape[1]
        self._bias = None if bias is None else bias.contiguous()
        self._levels = levels_table(LEVELS if coded is None else coded.levels)
        self.structure = Linear(
            bias=None if self._bias is None else self._bias.data_ptr(),
            num_outputs=self.num_outputs,
            width=self.width,
            is_bf16=self.dtype is torch.bfloat16,
            is_gated=is_gated,
            bits=0 if coded is None else coded.bits,
            has_zeros=coded is not None and coded.zeros is not None,
            levels=self._levels.data_ptr(),
            gate=_gate_number(gate if activation is None else activation),
            is_activated=activation is not None,
        )
        if isinstance(gate, ClampedSwiglu):
            self.structure.gate_limit, self.structure.gate_alpha = gate.limit, gate.alpha
        self._exceptions: Exceptions | None = None
        if coded is None:
            assert isinstance(weight, torch.Tensor), "it is dense, or there are codes"
            self._pack_dense(weight.contiguous())
            return
        self._take_panels()
        library.pack_quantised(
            self._pool(), self.structure, coded.codes.data_ptr(), coded.scales.data_ptr(),
            None if coded.zeros is None else coded.zeros.data_ptr(), self._panels.data_ptr(),
        )  # fmt: skip

    def _take_panels(self) -> None:
        self._panels = huge_zeros(self._library.packed_bytes(self.structure))
        self.structure.panels = self._panels.data_ptr()

    def _pack_dense(self, weight: torch.Tensor) -> None:
        library = self._library
        if self.dtype is torch.bfloat16:
            self._exceptions = find_exceptions(library, self._pool(), self.structure, weight)
        self._take_panels()
        if self._exceptions is None:
            library.pack(self._pool(), self.structure, weight.data_ptr(), self._panels.data_ptr())
            return
        library.pack_twelve(
            self._pool(), self.structure, weight.data_ptr(), self._panels.data_ptr(),
            self._exceptions.all.data_ptr(),
        )  # fmt: skip

    def take_adapters(self, lora: PackedLora) -> None:
        """Have room for adapters from now on; before, and for rows without one, nothing changes."""
        self.lora = lora
        self.structure.lora = lora.address

    def __call__(self, x: torch.Tensor, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[M, N]`` for x ``[M, K]`` of the weight's dtype.

        Args:
            x: rows.
            adapters: ``[M]`` int32 slots of `lora`, -1 for no adapter, contiguous; None: no row has
                one.
        """
        if x.dtype is not self.dtype or x.dim() != 2 or x.shape[1] != self.width:
            raise ValueError(
                f"x: expected {self.dtype} [M, {self.width}], got {x.dtype} {list(x.shape)}"
            )
        x = x.contiguous()
        y = torch.empty(len(x), self.num_outputs, dtype=self.dtype)
        shrunk = None
        if adapters is not None and self.lora is not None:
            self.lora.check(adapters, len(x))
            shrunk = torch.empty(len(x), self.lora.shrunk_width, dtype=torch.float32)
        self._library.product(
            self._pool(), self.structure, x.data_ptr(), len(x), y.data_ptr(),
            None if shrunk is None or adapters is None else adapters.data_ptr(),
            None if shrunk is None else shrunk.data_ptr(),
        )  # fmt: skip
        return y

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return rows ``[R, K]`` of the weight at ``[R]`` int64; it has no gate and no codes."""
        if self.code_bits or self.structure.is_gated:
            raise ValueError("a weight with a gate or codes is not looked up")
        indices = indices.contiguous()
        found = torch.empty(len(indices), self.width, dtype=self.dtype)
        self._library.unpack_rows(
            self.structure, indices.data_ptr(), len(indices), found.data_ptr()
        )
        return found

    @property
    def code_bits(self) -> int:
        """Of its quantised weight; 0: it has none."""
        return 0 if self._exceptions else self.structure.bits

    @property
    def num_bytes(self) -> int:
        """Memory of the packed weight."""
        return self._panels.nbytes + (self._exceptions.num_bytes if self._exceptions else 0)

    @property
    def address(self) -> int:
        """Where the C sources find it, as long as this object lives."""
        return ctypes.addressof(self.structure)

    def _pool(self) -> int:
        return self._library.threads(torch.get_num_threads())


def _gate_number(gate: Gate) -> int:
    return 1 if isinstance(gate, ClampedSwiglu) else _ACTIVATIONS[gate]
