"""OpenAI's official client for Node, where there is a Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "node"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
@pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="npm has not installed it")
def test_openai_for_node() -> None:
    done = subprocess.run(
        ["node", "openai.mjs"], cwd=FOLDER, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
