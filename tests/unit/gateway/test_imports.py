"""The gateway's image needs neither torch nor transformers; each process counts its own."""

import functools
import os
import subprocess
import sys

import pytest

METRICS = "from pagoda_runtime.telemetry.metrics import render; print(render()[0].decode())"


@functools.cache
def printed(code: str) -> str:
    """Return what a process prints that imports what the code says."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    ).stdout


def test_imports_no_torch_and_no_transformers() -> None:
    code = (
        "import sys, pagoda_gateway.__main__;"
        "print([m for m in ('torch', 'transformers', 'triton') if m in sys.modules])"
    )
    assert printed(code).strip() == "[]"


@pytest.mark.parametrize("name", ["pagoda_ledger_waiting_messages", "pagoda_reconciled_requests"])
def test_what_the_applier_counts_only_the_applier_exports(name: str) -> None:
    assert name not in printed(f"import pagoda_gateway.__main__; {METRICS}")
    assert name in printed(f"import pagoda_gateway.accounts.usage.applier; {METRICS}")


@pytest.mark.parametrize("name", ["pagoda_request_seconds", "pagoda_outbox_bytes"])
def test_what_gateways_count_the_applier_does_not_export(name: str) -> None:
    assert name in printed(f"import pagoda_gateway.__main__; {METRICS}")
    assert name not in printed(f"import pagoda_gateway.accounts.usage.applier; {METRICS}")
