"""Matmuls with quantised weights at decode batches, beside the same layer in bf16.

The floor is one read of the weight and its scales; activations and outputs are small beside it.
Two kinds of cases are expected to miss the goal by arithmetic: 64 rows of int4 are 256 operations
for a byte, multiplied in bf16, and an H200 reads 4096 x 4096 weights in about the time of a launch.
"""

from collections.abc import Callable

import torch

from gpu.kernels.case import Case, Launch
from gpu.kernels.cases.inputs import relative_error
from gpu.kernels.tunable import Tile, Tunable, tiles
from pagoda_kernels.matmul import pack as quant_pack
from pagoda_kernels.matmul.quant_matmul import fp8_matmul, quant_matmul, quantise_fp8
from pagoda_kernels.matmul.triton.matmul_tiles import tile_key
from pagoda_kernels.matmul.weights import FP8_BLOCK, Fp8Weight, Int4Weight, Int8Weight, QuantWeight

BATCHES = (1, 16, 64)
SHAPES = ((4096, 4096), (28672, 4096))
"""(N, K) of a Llama-3 8B layer: attention output, gate and up projection."""

GOAL = 0.8
TOLERANCE = 5e-3

Quantise = Callable[[torch.Tensor], QuantWeight]
FORMATS: dict[str, Quantise] = {
    "fp8": lambda weight: quant_pack.quantise_fp8_weight(weight, "channel"),
    "fp8 block": lambda weight: quant_pack.quantise_fp8_weight(weight, "block"),
    "int8": quant_pack.quantise_int8,
    "int4": quant_pack.quantise_int4,
}


def cases(device: torch.device) -> list[Case]:
    return [
        matmul_case(device, name, num_rows, num_n, num_k)
        for name in FORMATS
        for num_n, num_k in SHAPES
        for num_rows in BATCHES
    ] + [quantise_case(device, 4096, 4096)]


def tunables(device: torch.device) -> list[Tunable]:
    return [
        Tunable(
            op=op,
            shape=tile_key(num_rows, element_bytes),
            case=matmul_case(device, name, num_rows, *SHAPES[-1]),
            candidates=_candidates(max(16, num_rows), widths, depths),
        )
        for op, name, element_bytes, widths, depths in (
            ("fp8_matmul", "fp8", 1, (64, 128), (128, 256)),
            ("fp8_matmul block", "fp8 block", 1, (64, 128), (128,)),
            ("int8_matmul", "int8", 2, (64, 128, 256), (64, 128)),
            ("int4_matmul", "int4", 2, (64, 128, 256), (128,)),
        )
        for num_rows in BATCHES[1:]
    ]


def _candidates(block_m: int, widths: tuple[int, ...], depths: tuple[int, ...]) -> list[Tile]:
    return tiles(
        block_m=(block_m,),
        block_n=widths,
        block_k=depths,
        num_warps=(4, 8),
        num_stages=(3, 4, 6),
    )


def matmul_case(device: torch.device, name: str, num_rows: int, num_n: int, num_k: int) -> Case:
    """Reads the weight once; x of an fp8 case is quantised before the clock starts."""
    half_bytes = {"int4": 1, "int8": 2}.get(name, 2)
    scale_bytes = {"int4": 2 * 2 * num_n * num_k // 128, "int8": 2 * num_n}.get(name, 4 * num_n)
    return Case(
        op="quant_matmul",
        name=f"{name} M{num_rows} N{num_n} K{num_k} bf16",
        check=lambda seed: _error(*_inputs(device, name, num_rows, num_n, num_k, seed)),
        tolerance=TOLERANCE,
        build=lambda: _launch(*_inputs(device, name, num_rows, num_n, num_k)),
        num_bytes=half_bytes * num_n * num_k // 2 + scale_bytes + 2 * num_rows * (num_n + num_k),
        goal=GOAL,
        baselines={
            "bf16 linear": lambda: _linear(*_inputs(device, name, num_rows, num_n, num_k)),
            **_vendor_baseline(device, name, num_rows, num_n, num_k),
        },
    )


def quantise_case(device: torch.device, num_rows: int, num_k: int) -> Case:
    """Reads bf16, writes fp8 and a scale per 128 columns."""
    return Case(
        op="quant_matmul",
        name=f"quantise_fp8 M{num_rows} K{num_k} groups of 128 bf16",
        check=lambda seed: _quantise_error(_rows(device, num_rows, num_k, seed)),
        tolerance=0.04,
        build=lambda: _quantise_launch(_rows(device, num_rows, num_k)),
        num_bytes=3 * num_rows * num_k + 4 * num_rows * num_k // 128,
        goal=0.85,
    )


def _inputs(
    device: torch.device, name: str, num_rows: int, num_n: int, num_k: int, seed: int | None = None
) -> tuple[torch.Tensor, QuantWeight]:
    x = _rows(device, num_rows, num_k, seed)
    return x, FORMATS[name](torch.randn(num_n, num_k, dtype=torch.bfloat16, device=device))


def _rows(device: torch.device, num_rows: int, num_k: int, seed: int | None = None) -> torch.Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    return torch.randn(num_rows, num_k, dtype=torch.bfloat16, device=device)


def _launch(x: torch.Tensor, weight: QuantWeight) -> Launch:
    if not isinstance(weight, Fp8Weight):
        return lambda: quant_matmul(x, weight)
    values, scale = _quantised_rows(x, weight)
    return lambda: fp8_matmul(values, scale, weight, dtype=torch.bfloat16)


def _quantised_rows(x: torch.Tensor, weight: Fp8Weight) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise_fp8(x, group_size=FP8_BLOCK if weight.is_block_scaled else None)


def _error(x: torch.Tensor, weight: QuantWeight) -> float:
    """Against the dequantised weight in fp64, x as quantised for fp8."""
    wide = x.double()
    if isinstance(weight, Fp8Weight):
        values, scale = _quantised_rows(x, weight)
        if weight.is_block_scaled:
            wide = values.double() * scale.repeat_interleave(FP8_BLOCK, 1)[:, : x.shape[1]]
        else:
            wide = values.double() * scale[:, None]
    assert isinstance(weight, Int4Weight | Int8Weight | Fp8Weight)
    return relative_error(_launch(x, weight)(), wide @ weight.dequantised().double().T)  # type: ignore[arg-type]


def _quantise_error(x: torch.Tensor) -> float:
    values, scale = quantise_fp8(x, group_size=FP8_BLOCK)
    return relative_error(values.double() * scale.repeat_interleave(FP8_BLOCK, 1), x.double())


def _quantise_launch(x: torch.Tensor) -> Launch:
    return lambda: quantise_fp8(x, group_size=FP8_BLOCK)


def _linear(x: torch.Tensor, weight: QuantWeight) -> Launch:
    wide = weight.dequantised().to(x.dtype)
    return lambda: torch.nn.functional.linear(x, wide)


def _vendor_baseline(
    device: torch.device, name: str, num_rows: int, num_n: int, num_k: int
) -> dict[str, Callable[[], Launch]]:
    if name != "fp8":
        return {}
    return {"scaled_mm": lambda: _scaled_mm(*_inputs(device, name, num_rows, num_n, num_k))}


def _scaled_mm(x: torch.Tensor, weight: QuantWeight) -> Launch:
    assert isinstance(weight, Fp8Weight)
    values, scale = _quantised_rows(x, weight)
    scale_a, scale_b = scale[:, None], weight.scales[None]
    return lambda: torch._scaled_mm(
        values, weight.values.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16
    )
