"""`pagoda keys` beside a running `pagoda up`, with nothing but its home."""

import os
import subprocess

import httpx
import pytest
from support.stack import PAGODA, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def pagoda(stack: Stack, *arguments: str) -> str:
    environ = {**os.environ, "PAGODA_HOME": str(stack.home)}
    done = subprocess.run(
        [PAGODA, *arguments], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_key_of_a_new_tenant_works_until_it_is_revoked(any_stack: Stack) -> None:
    pagoda(any_stack, "tenants", "create", "acme")
    key = pagoda(any_stack, "keys", "create", "--tenant", "acme", "--label", "ci")
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=any_stack.url, headers=headers, timeout=60) as http:
        body = {"model": any_stack.model, "prompt": "To be", "max_tokens": 2}
        assert http.post("/v1/completions", json=body).status_code == 200
        (line,) = [
            line
            for line in pagoda(any_stack, "keys", "list", "--tenant", "acme").splitlines()
            if key[:14] in line
        ]
        pagoda(any_stack, "keys", "revoke", line.split()[0])
        assert http.post("/v1/completions", json=body).status_code == 401
    log = (any_stack.home / "logs" / "gateway.log").read_text()
    assert "administration: POST /admin/keys" in log
    assert key not in log
    assert "permissions violation" not in log.lower()
