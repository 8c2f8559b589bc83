"""How many workers of each kind `pagoda up` starts: PAGODA_TOPOLOGY, which no service reads."""

import re
from dataclasses import dataclass

from pydantic import field_validator

from pagoda_runtime.configuration.settings import CommonSettings

ROLES = ("prefill", "decode")
MAX_WORKERS = 64
_COUNTS = re.compile(r"(?P<role>prefill|decode)=(?P<count>\d+)")


@dataclass(frozen=True, slots=True)
class Topology:
    """Numbers of workers; without prefill workers the decode workers prefill by themselves."""

    num_prefill: int
    num_decode: int

    def num_workers(self, role: str) -> int:
        """Return how many there are of a role."""
        return self.num_prefill if role == "prefill" else self.num_decode


def parse_topology(text: str) -> Topology:
    """Return the topology that PAGODA_TOPOLOGY names.

    Raises:
        ValueError: the text names none.
    """
    if text == "disaggregated":
        return Topology(num_prefill=1, num_decode=1)
    if text == "aggregated":
        return Topology(num_prefill=0, num_decode=1)
    matches = [_COUNTS.fullmatch(part.strip()) for part in text.split(",")]
    counts = {match["role"]: int(match["count"]) for match in matches if match}
    is_sound = len(counts) == len(matches) and max(counts.values(), default=0) <= MAX_WORKERS
    if not is_sound or counts.get("decode", 0) < 1:
        raise ValueError(
            "give disaggregated, aggregated, or prefill=P,decode=D with at least one decode worker "
            f"and at most {MAX_WORKERS} of each"
        )
    return Topology(num_prefill=counts.get("prefill", 0), num_decode=counts["decode"])


class StackSettings(CommonSettings):
    """What every process shares, the topology checked."""

    @field_validator("topology")
    @classmethod
    def _check_topology(cls, text: str) -> str:
        parse_topology(text)
        return text
