"""`pagoda trace` beside a running `pagoda up`, with nothing but its home."""

import os
import subprocess

import pytest
from support.stack import PAGODA, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("shared_stack", ["disaggregated"], indirect=True)
def test_trace_command_prints_the_request(any_stack: Stack) -> None:
    answer = any_stack.openai().chat.completions.with_raw_response.create(
        model=any_stack.model, messages=[{"role": "user", "content": "What ho!"}], max_tokens=4
    )
    environ = {**os.environ, "PAGODA_HOME": str(any_stack.home)}
    for name in (answer.headers["x-request-id"], answer.parse().id):
        printed = subprocess.run(
            [PAGODA, "trace", name], env=environ, capture_output=True, text=True, timeout=60
        )
        assert printed.returncode == 0, printed.stderr
        assert "prefill.compute" in printed.stdout
        assert "decode.generate" in printed.stdout
