"""`make clients`: starts a stack and runs these tests against it with another virtualenv's Python.

Clients need versions of libraries that the project does not have.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.stack import running_stack

HERE = Path(__file__).parent


def main(python: str) -> int:
    """Return pytest's exit code; `python` is the interpreter that has the clients."""
    with tempfile.TemporaryDirectory() as home, running_stack(Path(home)) as stack:
        environ = {
            **os.environ,
            "OPENAI_BASE_URL": f"{stack.url}/v1",
            "OPENAI_API_KEY": stack.api_key,
            "PAGODA_MODEL_NAME": stack.model,
            "HF_HUB_OFFLINE": "1",
        }
        command = [python, "-m", "pytest", "-c", str(HERE / "pytest.ini"), str(HERE)]
        return subprocess.run(command, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
