"""`make openapi-test`: starts a stack and has schemathesis try what /openapi.json describes.

Nothing may fail (5xx), and no answer may be one that the document does not describe.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.seeds import seed_of_tests
from support.stack import running_stack

HERE = Path(__file__).parent
MAX_EXAMPLES = 8  # of each operation, when it is fuzzed
MAX_SECONDS = 300.0
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
GENERATING = (  # of each some requests must have been good enough to be served
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
    "/v1/messages/batches",
)  # fmt: skip
LIMITS = {  # so that no request takes long
    "PAGODA_GATEWAY_RECEIPT_WAIT_SECONDS": "1",  # most that are asked for are of no request
    "PAGODA_PREFILL_MAX_MODEL_LEN": "64",
    "PAGODA_DECODE_MAX_MODEL_LEN": "64",
    "PAGODA_GATEWAY_MAX_N": "2",
    "PAGODA_GATEWAY_MAX_SEQUENCES": "4",
}


def main(schemathesis: str) -> int:
    """Return schemathesis's exit code; `schemathesis` is its command."""
    seed = seed_of_tests()
    with tempfile.TemporaryDirectory() as home, running_stack(Path(home), LIMITS) as stack:
        environ = {
            **os.environ,
            "PAGODA_MODEL_NAME": stack.model,
            "PYTHONPATH": str(HERE),
            "SCHEMATHESIS_HOOKS": "hooks",
        }
        command = [schemathesis, "run", f"{stack.url}/openapi.json", "--seed", str(seed)]
        command += ["--header", f"Authorization: Bearer {stack.api_key}"]
        command += ["--checks", ",".join(CHECKS), "--max-examples", str(MAX_EXAMPLES)]
        command += ["--phases", "examples,coverage,fuzzing", "--no-color", "--warnings", "off"]
        command += ["--request-timeout", "30", "--suppress-health-check", "all"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command, env=environ, cwd=folder, check=False, timeout=MAX_SECONDS
            )
        served = {
            path: stack.metric("gateway", "pagoda_http_responses_total", route=path, status="200")
            for path in GENERATING
        }
        print(f"Answers with status 200: {served}")
        return done.returncode if all(served.values()) else 1


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).absolute())))
