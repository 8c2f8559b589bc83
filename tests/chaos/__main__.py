"""`make chaos`: faults of every kind under load, a table, a JSON file, and an exit code.

    python -m chaos [--cases r1,nats] [--faults 20] [--streams 24] [--seed 1]

How to read a failure is in docs/howto/chaos.md.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from chaos.cases import CASES
from chaos.runner import Options, Runner
from chaos.tally import CaseResult, table
from pagoda_cli.bench.provenance import provenance
from pagoda_cli.bench.report import write_json

ROOT = Path(__file__).parents[2]
DEFAULT_CASES = [name for name in CASES if name != "short"]


def main() -> int:
    """Run, print, write; 0 if every case passed."""
    arguments = parse()
    # As an exception, so that the stack is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = Options(
        num_faults=arguments.faults,
        num_streams=arguments.streams,
        num_tokens=arguments.tokens,
        num_prompts=arguments.prompts,
        pause_seconds=tuple(arguments.pause),
        topology=arguments.topology,
        silence_seconds=arguments.silence,
        seed=arguments.seed,
    )
    home = arguments.home / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    say(f"seed {options.seed}, homes in {home}")
    path = arguments.output / f"{datetime.now(UTC):%Y-%m-%d}-chaos.json"
    results = asyncio.run(run(arguments.cases, options, home, path))
    print(table(results))
    problems = {result.case.name: result.all_problems() for result in results}
    for name, texts in problems.items():
        print(f"{name}: {'; '.join(texts) or 'passed'}")
    say(f"wrote {path}")
    return 1 if any(problems.values()) else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    default = Options()
    parser = argparse.ArgumentParser(
        prog="chaos",
        description="; ".join(f"{case.name}: {case.about}" for case in CASES.values()),
    )
    parser.add_argument("--cases", type=_cases, default=DEFAULT_CASES, help="names, with commas")
    parser.add_argument("--faults", type=int, default=default.num_faults, help="of each case")
    parser.add_argument("--streams", type=int, default=default.num_streams, help="at a time")
    parser.add_argument("--tokens", type=int, default=default.num_tokens, help="of a stream")
    parser.add_argument("--prompts", type=int, default=default.num_prompts, help="distinct ones")
    parser.add_argument("--topology", default=default.topology)
    parser.add_argument("--pause", type=float, nargs=2, default=default.pause_seconds)
    parser.add_argument("--silence", type=float, default=default.silence_seconds)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--home", type=Path, default=ROOT / ".pagoda" / "chaos")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


async def run(names: list[str], options: Options, home: Path, path: Path) -> list[CaseResult]:
    """Run the cases, a stack each; only the homes of those that failed are kept.

    What is known is written to `path` after each: a run that is cut short is not for nothing.
    """
    runner, results = Runner(options, home, say), []
    for name in names:
        say(f"{name}: {CASES[name].about}")
        try:
            result = await runner.run(CASES[name])
        except Exception as error:  # the other cases are worth their time
            traceback.print_exc()
            result = CaseResult(CASES[name], {}, problems=[f"the harness: {error!r}"])
        results.append(result)
        write_json(path, document(results, options))
        problems = result.all_problems()
        say(f"{name}: {'; '.join(problems)}; logs in {home / name}" if problems else f"{name}: ok")
        if not problems:
            shutil.rmtree(home / name)
    return results


def document(results: list[CaseResult], options: Options) -> dict[str, object]:
    """Return everything as plain types."""
    return {
        "schema_version": 1,
        "provenance": provenance(["python", "-m", "chaos", *sys.argv[1:]]).as_dict(),
        "options": {name: getattr(options, name) for name in Options.__slots__},
        "cases": {result.case.name: result.as_dict() for result in results},
    }


def say(text: str) -> None:
    """Report progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _cases(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := sorted(set(names) - CASES.keys()):
        raise argparse.ArgumentTypeError(f"no case {unknown}: give some of {', '.join(CASES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
