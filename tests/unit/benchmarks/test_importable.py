"""What check-gpu starts imports on a host that has torch, Triton, numpy and pytest."""

import os
import subprocess
import sys
import sysconfig

import pytest
from importable import HERE

CODE = """
import sys
from importable import missing_folders
sys.path.extend(missing_folders())
import check_gpu, ipc_check, plans, point_phase, point_worker, ready_probe, transfer_peer
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
UNNEEDED = {
    "google",
    "grpc",
    "nats",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "safetensors",
    "transformers",
    "xxhash",
}


@pytest.mark.slow
def test_a_bare_checkout_is_enough():
    # -S: packages are found, but not what was installed in place, as Pagoda's own members are.
    folders = [str(HERE), sysconfig.get_path("purelib")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", CODE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not UNNEEDED & set(done.stdout.split())
