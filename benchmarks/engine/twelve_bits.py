"""Products of bf16 weights that lie in twelve bits beside the same ones in sixteen, in turns.

    python benchmarks/engine/twelve_bits.py [--threads 1 2] [--rows 1 8 32 256]

The projections of 18 layers of a Llama of 126M parameters, random numbers, one after the other as a
step takes them: more than any cache holds. Medians of turns, the least in brackets. Outputs are
compared. Nothing else should run meanwhile.
"""

import argparse
import statistics
import time

import torch

from pagoda_kernels.native import packed_linear
from pagoda_kernels.native.library import native_library
from pagoda_kernels.native.packed_linear import PackedLinear

SHAPES = ((1280, 768, False), (768, 768, False), (4096, 768, True), (768, 2048, False))
NUM_LAYERS = 18
TURN_SECONDS = 1.5


def projections(*, has_twelve_bits: bool) -> list[PackedLinear]:
    """Pack the same weights in one of the two ways."""
    assert native_library() is not None, "there is no compiler"
    found = packed_linear.find_exceptions
    if not has_twelve_bits:
        packed_linear.find_exceptions = lambda *_: None
    random = torch.Generator().manual_seed(7)
    made = [
        PackedLinear(
            (torch.randn(rows, width, generator=random) * 0.02).bfloat16(), is_gated=is_gated
        )
        for _ in range(NUM_LAYERS)
        for rows, width, is_gated in SHAPES
    ]
    packed_linear.find_exceptions = found
    return made


def milliseconds(linears: list[PackedLinear], inputs: dict[int, torch.Tensor]) -> float:
    """Take one product of each."""
    started = time.perf_counter()
    for linear in linears:
        linear(inputs[linear.width])
    return 1e3 * (time.perf_counter() - started)


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 6, 8, 16, 32, 128, 256])
    options = parser.parse_args()
    ways = {12: projections(has_twelve_bits=True), 16: projections(has_twelve_bits=False)}
    sizes = {bits: sum(linear.num_bytes for linear in made) for bits, made in ways.items()}
    print(f"{sizes[12] / 1e6:.0f} and {sizes[16] / 1e6:.0f} MB")
    for threads in options.threads:
        torch.set_num_threads(threads)
        for rows in options.rows:
            inputs = {width: torch.randn(rows, width).bfloat16() for _, width, _ in SHAPES}
            for one, other in zip(*ways.values(), strict=True):
                assert torch.equal(one(inputs[one.width]), other(inputs[other.width]))
            found: dict[int, list[float]] = {12: [], 16: []}
            end = time.perf_counter() + TURN_SECONDS
            while time.perf_counter() < end or len(found[16]) < 5:
                for bits, made in ways.items():
                    found[bits].append(milliseconds(made, inputs))
            middle = {bits: statistics.median(each) for bits, each in found.items()}
            times = [f"{bits} bits {middle[bits]:.2f} ({min(found[bits]):.2f})" for bits in ways]
            ratio = middle[16] / middle[12]
            print(f"{threads} thread(s), {rows:3} rows, ms: {', '.join(times)}: {ratio:.2f} times")


if __name__ == "__main__":
    main()
