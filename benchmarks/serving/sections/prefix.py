"""Time to first token with a long shared prefix: the first request that has it, and later ones."""

from pathlib import Path

from driving.load import prefix_outcomes
from driving.spread import Spread
from running.processes import Stack

from sections.section import Section

NUM_PREFIX_TOKENS = 1024
NUM_UNIQUE_TOKENS = 64
NUM_PREFIXES = 3
NUM_WARM = 4


class PrefixSection:
    """Collects repetitions; `section` reports them."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = model / "tokenizer.json"
        self._cold: list[float] = []
        self._warm: list[float] = []
        self._num_cached: set[int] = set()
        self._num_failed = 0

    def repeat(self, stack: Stack, *, seed: int) -> None:
        """Send new prefixes, each several times; one cold and one warm value comes of it."""
        cold, warm = [], []
        for number in range(NUM_PREFIXES):
            outcomes = prefix_outcomes(
                stack.endpoint,
                tokenizer=self._tokenizer,
                seed=1000 * seed + number,
                num_prefix=NUM_PREFIX_TOKENS,
                num_unique=NUM_UNIQUE_TOKENS,
                count=1 + NUM_WARM,
            )
            self._num_failed += sum(bool(outcome.failure) for outcome in outcomes)
            cold += [1e3 * (outcomes[0].ttft_seconds or 0.0)]
            warm += [1e3 * (outcome.ttft_seconds or 0.0) for outcome in outcomes[1:]]
            self._num_cached |= {outcome.num_cached_tokens for outcome in outcomes[1:]}
        if self._num_failed:
            raise RuntimeError(f"{self._num_failed} requests failed: {outcomes[-1].message}")
        self._cold.append(Spread.of(cold).median)
        self._warm.append(Spread.of(warm).median)

    def section(self) -> Section:
        """Return the report."""
        cold, warm = Spread.of(self._cold), Spread.of(self._warm)
        ratio = Spread.ratio(self._cold, self._warm)
        return Section(
            title=f"{NUM_PREFIX_TOKENS}-token shared prefix, warm against cold",
            columns=["TTFT cold ms", "TTFT warm ms", "cold / warm", "cached tokens warm", "failed"],
            rows=[
                [
                    cold.text(),
                    warm.text(),
                    ratio.text(2),
                    ", ".join(map(str, sorted(self._num_cached))),
                    f"{self._num_failed}",
                ]
            ],
            notes=[
                f"Disaggregated topology, one request at a time; {NUM_UNIQUE_TOKENS} unique tokens "
                f"follow the prefix. Each repetition: median over {NUM_PREFIXES} new prefixes, "
                f"{NUM_WARM} warm requests each, the first one right after the cold one."
            ],
            spreads={"cold_ttft_ms": cold, "warm_ttft_ms": warm, "ratio": ratio},
            details={"num_cached_tokens": sorted(self._num_cached)},
        )
