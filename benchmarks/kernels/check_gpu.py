"""`make check-gpu`: proves and measures Pagoda on the GPU of this host, in under six minutes.

    python benchmarks/kernels/check_gpu.py [--output DIR] [--ops OP ...] [--tune OP]

Needs the host's own python, torch, triton, numpy and pytest; no network, nothing installed. Order:
measured ceilings, correctness on the device, timings of what is right, baselines. Writes
benchmarks/results/<gpu>/<section>.json and prints a short table last. Exit status: 0 all right,
1 something is wrong or crashed, 2 no CUDA device.
"""

import argparse
import secrets
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from deadline import Deadline
from discovery import ROOT, bench_files, make_importable
from environment import describe, gpu_slug, has_cuda
from gpu_section import Context, Section
from kernel_section import KernelSection
from report import write_results

BUDGET_SECONDS = 330.0
NO_DEVICE = 2

SECTIONS: dict[str, Section] = {"kernels": KernelSection()}
"""In the order they run; a later stage adds its own here."""


def main(arguments: list[str]) -> int:
    """Run the chosen sections; returns the exit status."""
    options = _parse(arguments)
    deadline = Deadline(options.seconds)
    found, message = has_cuda()
    if not found:
        print(message, file=sys.stderr)
        return NO_DEVICE
    import torch

    make_importable()
    device_name = torch.cuda.get_device_name()
    if options.tune:
        from tune import tune

        return tune(options.tune, device_name, deadline)
    folder = options.output or ROOT / "benchmarks" / "results" / gpu_slug(device_name)
    provenance = describe(device_name, arguments)
    chosen = [SECTIONS[name] for name in options.sections]
    lines: list[str] = []
    failures: list[str] = []
    for position, section in enumerate(chosen):
        share = deadline.share(1 / (len(chosen) - position))
        context = Context(share, options.seed, tuple(options.ops), options.skip_tests)
        result = section.run(context)
        path = write_results(
            folder,
            section.name,
            provenance,
            {**result.data, "failures": result.failures, "notes": result.notes},
        )
        failures += result.failures
        lines += [*result.table, *(f"note: {note}" for note in result.notes[:10])]
        lines += [f"written: {path}"]
    lines += [f"FAILED: {failure}" for failure in failures[:20]]
    print("\n".join([f"{device_name}, driver {provenance['driver']}", *lines]))
    return 1 if failures else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--ops", nargs="+", default=[], help="only these operators' cases")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--seconds", type=float, default=BUDGET_SECONDS, help="for the whole run")
    parser.add_argument("--skip-tests", action="store_true", help="leave tests/kernels out")
    parser.add_argument("--tune", metavar="OP", help="search tile shapes of an operator instead")
    options = parser.parse_args(arguments)
    try:
        bench_files(Path(__file__).resolve().parent, options.ops)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
