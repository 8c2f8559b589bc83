"""What check-gpu starts imports on a host that has torch, Triton, numpy and pytest."""

import os
import subprocess
import sys
import sysconfig

import pytest
from gpu.harness.importable import BENCHMARKS

CODE = """
import sys
from gpu.harness.importable import missing_folders
sys.path.extend(missing_folders())
from gpu import check_gpu
from gpu.engine import plans, ready_probe
from gpu.harness import phase, worker
from gpu.kernels import plan
from gpu.transfer import ipc_check, peer, points
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
    folders = [str(BENCHMARKS), sysconfig.get_path("purelib")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", CODE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not UNNEEDED & set(done.stdout.split())
