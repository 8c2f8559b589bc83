import pytest

from pagoda_cli.up.topology import Topology, parse_topology


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("disaggregated", Topology(1, 1)),
        ("aggregated", Topology(0, 1)),
        ("prefill=2,decode=3", Topology(2, 3)),
        ("decode=2, prefill=1", Topology(1, 2)),
        ("decode=2", Topology(0, 2)),
    ],
)
def test_parse(text: str, topology: Topology) -> None:
    assert parse_topology(text) == topology


@pytest.mark.parametrize(
    "text",
    ["", "disagregated", "prefill=2", "prefill=1,decode=0", "decode=65", "decode=1,decode=2"],
)
def test_nonsense_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="prefill=P,decode=D"):
        parse_topology(text)
