"""Runs of several servers under the same loads: medians, spreads, and ratios to the best peer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from driving.load import Load
from driving.spread import Spread
from sections.section import Section, failures

from pagoda_cli.bench.results import Results
from peers.watch import LOUD_PERCENT, Seen

MIN_REPEATS = 3
# Name, unit, digits, whether more is better.
METRICS = (
    ("output_tokens_per_second", "tok/s", 1, True),
    ("ttft_ms", "TTFT p50 ms", 1, False),
    ("tpot_ms", "TPOT p50 ms", 2, False),
    ("peak_memory_mib", "peak MiB", 0, False),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One server under one load, in one repetition."""

    results: Results
    seen: Seen

    def value(self, metric: str) -> float | None:
        """Return a metric; None where no request was complete."""
        if metric == "peak_memory_mib":
            return self.seen.peak_memory_bytes / 2**20
        if not self.results.num_ok:
            return None
        if metric == "output_tokens_per_second":
            return self.results.output_tokens_per_second
        distribution = getattr(self.results, metric)
        return None if distribution is None else float(distribution.p50)


class Comparison:
    """Collects runs; says what they come to at any time."""

    def __init__(self, *, repeats: int, fraction: float) -> None:
        self._repeats = repeats
        self._fraction = fraction
        self._runs: dict[str, dict[str, dict[int, Run]]] = {}  # by load, server, repetition
        self._loads: dict[str, Load] = {}
        self._ours: set[str] = set()
        self.problems: list[str] = []

    def add(
        self, load_name: str, load: Load, server: str, repetition: int, run: Run, *, is_ours: bool
    ) -> None:
        """Take one run."""
        self._loads[load_name] = load
        self._runs.setdefault(load_name, {}).setdefault(server, {})[repetition] = run
        if is_ours:
            self._ours.add(server)

    def loads(self) -> list[str]:
        """Return the names of the loads that ran, in order."""
        return list(self._runs)

    def servers(self) -> list[str]:
        """Return the names of the servers that ran, in order."""
        return list(dict.fromkeys(name for runs in self._runs.values() for name in runs))

    def spread(self, load: str, server: str, metric: str) -> Spread | None:
        """Return a metric over the repetitions; None where nothing was complete."""
        values = [run.value(metric) for run in self._runs[load].get(server, {}).values()]
        known = [value for value in values if value is not None]
        return Spread.of(known) if known else None

    def ratio(self, load: str, server: str, metric: str, *, more_is_better: bool) -> Spread | None:
        """Return this server over the best peer of each repetition; peers are not Pagoda.

        A peer that failed requests counts as well: what it did answer, it answered. None without
        a peer beside it.
        """
        ratios = []
        for repetition, run in self._runs[load].get(server, {}).items():
            value = run.value(metric)
            peers = [
                known
                for name, runs in self._runs[load].items()
                if name not in self._ours
                and repetition in runs
                and (known := runs[repetition].value(metric)) is not None
            ]
            if value is not None and peers:
                ratios.append(value / (max(peers) if more_is_better else min(peers)))
        return Spread.of(ratios) if ratios else None

    def remarks(self) -> list[str]:
        """Return why these numbers are no measurement; empty: they are one."""
        found = []
        if self._repeats < MIN_REPEATS:
            found.append(f"{self._repeats} repetition(s), {MIN_REPEATS} are the least")
        if self._fraction != 1:
            found.append(f"only {self._fraction:g} of each load's requests")
        runs = [run for _, _, _, run in self._each()]
        loud = [run for run in runs if run.seen.is_loud]
        if loud:
            worst = max(max(run.seen.foreign_percent, run.seen.steal_percent) for run in loud)
            found.append(
                f"others used more than {LOUD_PERCENT:g} % of the machine in {len(loud)} of "
                f"{len(runs)} runs, up to {worst:.0f} %"
            )
        return found

    def sections(self) -> list[Section]:
        """Return a table for each load."""
        return [self._section(load) for load in self.loads()]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain types, for JSON."""
        return {
            "remarks": self.remarks(),
            "problems": self.problems,
            "sections": {
                load: section.as_dict()
                for load, section in zip(self.loads(), self.sections(), strict=True)
            },
            "runs": [
                {
                    "load": load,
                    "server": server,
                    "repetition": repetition,
                    "results": run.results.as_dict(),
                    "seen": run.seen.as_dict(),
                    "is_loud": run.seen.is_loud,
                }
                for load, server, repetition, run in self._each()
            ],
        }

    def _each(self) -> Iterator[tuple[str, str, int, Run]]:
        for load, servers in self._runs.items():
            for server, runs in servers.items():
                for repetition, run in runs.items():
                    yield load, server, repetition, run

    def _section(self, load: str) -> Section:
        columns = ["server"]
        for _, title, _, _ in METRICS:
            columns += [title, "to best peer"]
        section = Section(
            title=f"{load}: {self._loads[load].text}",
            columns=[*columns, "cores", "foreign CPU %", "failed"],
        )
        for server, runs in self._runs[load].items():
            cells = [server]
            for metric, _, digits, more_is_better in METRICS:
                spread = self.spread(load, server, metric)
                ratio = self.ratio(load, server, metric, more_is_better=more_is_better)
                cells += ["-" if spread is None else spread.text(digits)]
                cells += ["-" if ratio is None else f"{ratio.median:.2f}"]
                if spread is not None:
                    section.spreads[f"{server}.{metric}"] = spread
                if ratio is not None:
                    section.spreads[f"{server}.{metric}.to_best_peer"] = ratio
            seen = [run.seen for run in runs.values()]
            worst = max(one.foreign_percent for one in seen)
            cells.append(f"{Spread.of([one.server_cores for one in seen]).median:.2f}")
            cells.append(f"**{worst:.1f}**" if worst > LOUD_PERCENT else f"{worst:.1f}")
            cells.append(failures([run.results for run in runs.values()]))
            section.rows.append(cells)
        return section
