"""`pagoda up` as a user meets it."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.stack import PAGODA, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_curl_and_a_clean_stop(tmp_path: Path, stop_signal: signal.Signals) -> None:
    with running_stack(tmp_path) as stack:
        assert stack.ready_lines[-2] == f"pagoda ready {stack.url}"
        curl = subprocess.run(
            shlex.split(stack.ready_lines[-1]), capture_output=True, text=True, timeout=60
        )
        assert curl.returncode == 0
        assert curl.stdout.rstrip().endswith("data: [DONE]")
        for log in (tmp_path / "logs").glob("*.log"):
            assert "permissions violation" not in log.read_text().lower(), log
        children = psutil.Process(stack.process.pid).children(recursive=True)
        started = time.monotonic()
        assert stack.stop(stop_signal) == 0
        assert time.monotonic() - started < 10
        gone, alive = psutil.wait_procs(children, timeout=1)
        assert not alive
        assert len(gone) >= 7


def test_killed_worker_is_started_again(tmp_path: Path) -> None:
    with running_stack(tmp_path, {"PAGODA_TOPOLOGY": "aggregated"}) as stack:
        decode = next(
            p
            for p in psutil.Process(stack.process.pid).children(recursive=True)
            if "pagoda_decode" in " ".join(p.cmdline())
        )
        decode.kill()
        answer = stack.openai().completions.create(
            model=stack.model, prompt="To be, or", max_tokens=4
        )
    assert answer.usage.completion_tokens > 0


def test_unknown_setting_refuses_to_start_and_names_the_nearest(tmp_path: Path) -> None:
    environ = {**os.environ, "PAGODA_HOME": str(tmp_path), "PAGODA_HTP_PORT": "8000"}
    done = subprocess.run([PAGODA, "up"], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "PAGODA_HTP_PORT" in done.stderr
    assert "PAGODA_HTTP_PORT" in done.stderr
    assert "Traceback" not in done.stderr
