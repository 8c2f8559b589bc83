"""A second `pagoda up` on the same machine."""

from pathlib import Path

import pytest
from support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("shared_stack", ["aggregated"], indirect=True)
def test_two_stacks_run_side_by_side(any_stack: Stack, tmp_path: Path) -> None:
    with running_stack(tmp_path, {"PAGODA_TOPOLOGY": "aggregated"}) as other:
        for stack in (any_stack, other):
            with stack.http() as http:
                assert http.get("/v1/models").status_code == 200
        with other.http() as http:
            assert http.get(f"{any_stack.url}/v1/models").status_code == 401
