"""Scripts that no other test runs can at least be imported: what they name is there."""

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
NAMES = ("accounts", "engine", "scheduling", "speculation")
FOLDERS = [BENCHMARKS, *(BENCHMARKS / name for name in NAMES)]
IMPORT_ALL = """
import importlib.util, sys
from pathlib import Path
for path in sorted(path for folder in sys.argv[1:] for path in Path(folder).glob("*.py")):
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    print(path.stem)
"""


def test_every_script_can_be_imported() -> None:
    folders = list(map(str, FOLDERS))
    paths = [*folders, str(BENCHMARKS / "serving"), str(BENCHMARKS.parent / "tests")]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *folders],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"quantised_weights", "speculation", "usage_path"} <= set(done.stdout.split())
