import pytest

from pagoda_cli.up.memory import scarce_memory
from pagoda_cli.up.topology import parse_topology

MIB = 2**20


@pytest.mark.parametrize(("topology", "least"), [("aggregated", 544), ("disaggregated", 768)])
def test_too_little_memory_for_the_processes_is_said(topology: str, least: int) -> None:
    chosen = parse_topology(topology)
    assert scarce_memory(chosen, least * MIB) is None
    text = scarce_memory(chosen, (least - 1) * MIB)
    assert text is not None
    assert text.startswith(f"{least - 1} MiB of memory are left")
    assert f"about {least} MiB" in text
    assert ("PAGODA_TOPOLOGY" in text) == (topology == "disaggregated")
