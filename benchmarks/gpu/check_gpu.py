"""`make check-gpu`: proves and measures Pagoda on the GPU of this host, in under nine minutes.

    python benchmarks/gpu/check_gpu.py [--output DIR] [--sections NAME ...] [--ops OP ...]

Needs the host's own python, torch, triton, numpy, safetensors, transformers and pytest; no network,
nothing installed. In every section: measured ceilings, correctness on the device, timings of what
is right, baselines. Writes benchmarks/results/<gpu>/<section>.json, as results come, and prints a
short table after each, what is wrong last. Whoever ends it early has what there was, and no process
left. Exit status: 0 all right, 1 something is wrong or crashed, 2 no CUDA device.
"""

import argparse
import secrets
import sys
import traceback
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu.harness.importable import ROOT, missing_folders

sys.path.extend(missing_folders())

from gpu.engine.section import EngineSection
from gpu.harness.deadline import Deadline
from gpu.harness.environment import describe, gpu_slug, has_cuda
from gpu.harness.report import write_predictions, write_results
from gpu.harness.section import Context, Section, SectionResult
from gpu.kernels.discovery import CASES, bench_files
from gpu.kernels.section import KernelSection
from gpu.transfer.section import TransferSection

NO_DEVICE = 2

SECTIONS: dict[str, Section] = {
    "kernels": KernelSection(),
    "engine": EngineSection(),
    "transfer": TransferSection(),
}
"""In the order they run."""

BUDGET_SECONDS = {"kernels": 295.0, "engine": 175.0, "transfer": 60.0}
"""Of each section; one that ends early leaves its time to those after it."""


def main(arguments: list[str]) -> int:
    """Run the chosen sections; returns the exit status."""
    options = _parse(arguments)
    budgets = [BUDGET_SECONDS[name] for name in options.sections]
    deadline = Deadline(options.seconds or sum(budgets))
    found, message = has_cuda()
    if not found:
        print(message, file=sys.stderr)
        return NO_DEVICE
    import torch

    device_name = torch.cuda.get_device_name()
    if options.tune:
        from gpu.kernels.tune import tune

        return tune(options.tune, device_name, deadline)
    folder = options.output or ROOT / "benchmarks" / "results" / gpu_slug(device_name)
    # Results name no folder of this host.
    provenance = describe(device_name, [a.replace(str(options.output), "DIR") for a in arguments])
    print(f"{device_name}, driver {provenance['driver']}", flush=True)
    chosen = [SECTIONS[name] for name in options.sections]
    failures: list[str] = []
    for position, section in enumerate(chosen):
        share = deadline.share(budgets[position] / sum(budgets[position:]))
        save = partial(write_results, folder, section.name, provenance)
        context = Context(share, options.seed, tuple(options.ops), options.skip_tests, save)
        result = _run(section, context)
        outcome = {"failures": result.failures, "notes": result.notes}
        path = save({**result.data, **outcome}) if result.data else folder
        write_predictions(folder, section.name, provenance, result.predictions)
        failures += result.failures
        notes = (f"note: {note}" for note in result.notes[:10])
        print(*result.table, *notes, f"written: {path}", sep="\n", flush=True)
    for failure in failures[:20]:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def _run(section: Section, context: Context) -> SectionResult:
    try:
        return section.run(context)
    except Exception as error:  # a section that breaks must not cost the others
        traceback.print_exc()
        return SectionResult({}, [], [f"section {section.name}: {type(error).__name__}: {error}"])


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--ops", nargs="+", default=[], help="only these operators' cases")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--seconds", type=float, help="for the whole run")
    parser.add_argument("--skip-tests", action="store_true", help="leave tests/kernels out")
    parser.add_argument("--tune", metavar="OP", help="search tile shapes of an operator instead")
    options = parser.parse_args(arguments)
    try:
        bench_files(CASES, options.ops)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
