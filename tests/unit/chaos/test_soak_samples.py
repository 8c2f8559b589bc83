"""What the soak calls growth, and which log lines it takes for errors."""

from pathlib import Path

import pytest
from chaos.soak_samples import Usage, error_lines


def test_slope_is_in_mib_a_minute() -> None:
    usage = Usage(1, memory=[(seconds, (100 << 20) + seconds * 2**20) for seconds in range(10)])
    assert usage.slope_mib_per_minute() == pytest.approx(60)


def test_a_process_that_hardly_lived_has_no_slope() -> None:
    assert Usage(1, memory=[(0.0, 1)]).slope_mib_per_minute() == 0


def test_error_lines_of_services_and_servers_are_found(tmp_path: Path) -> None:
    (tmp_path / "decode-1.log").write_text(
        '{"level": "INFO", "message": "no ERROR here"}\n'
        '{"level": "WARNING", "message": "w"}\n'
        '{"level": "ERROR", "message": "e"}\n'
        "Traceback (most recent call last):\n"
    )
    (tmp_path / "nats.log").write_text("[1] 2026 [INF] ready\n[1] 2026 [ERR] broken\n")
    found = error_lines(tmp_path)
    assert [line.partition(":")[0] for line in found] == ["decode-1.log"] * 2 + ["nats.log"]
    assert "INFO" not in " ".join(found)
