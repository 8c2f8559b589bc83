"""`pagoda up` as a process, with a service that cannot start."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.servers import free_port

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_service_that_ends_at_once_is_shown_and_everything_stops(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environ = {name: v for name, v in os.environ.items() if not name.startswith("PAGODA_")}
    environ |= {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PAGODA_HOME": str(home),
        "PAGODA_HTTP_PORT": str(free_port()),
        "PAGODA_TOPOLOGY": "aggregated",
        "PAGODA_MODEL": str(tmp_path),
    }
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')

    result = subprocess.run(
        [sys.executable, "-c", "from pagoda_cli.app import main; main()", "up"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (result.returncode, result.stdout) == (1, "")
    assert "during the start; the end of" in result.stderr
    assert not (home / "env").exists()
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "status", "environ"])
        if (process.info["environ"] or {}).get("PAGODA_HOME") == str(home)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
    assert left == []
