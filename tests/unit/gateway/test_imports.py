"""The gateway's image needs neither torch nor transformers."""

import os
import subprocess
import sys


def test_imports_no_torch_and_no_transformers() -> None:
    code = (
        "import sys, pagoda_gateway.__main__;"
        "print([m for m in ('torch', 'transformers', 'triton') if m in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True
    )
    assert found.stdout.strip() == "[]"
