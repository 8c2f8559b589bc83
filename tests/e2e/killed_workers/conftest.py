"""The demo model behind one prefill and two decode workers, which the tests of this folder kill."""

from collections.abc import Iterator

import pytest
from support.stack import Stack, running_stack

ALL_WORKERS = 4.0  # the kvstore among them


@pytest.fixture(scope="package")
def killable_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Float32: equal prompts have equal tokens in any batch, on any worker."""
    environ = {
        "PAGODA_TOPOLOGY": "prefill=1,decode=2",
        "PAGODA_DTYPE": "float32",
        "PAGODA_GATEWAY_RECONCILE_SECONDS": "8",  # so long a test waits for a dead one's account
    }
    with running_stack(tmp_path_factory.mktemp("killable"), environ) as stack:
        yield stack


@pytest.fixture
def stack(killable_stack: Stack) -> Iterator[Stack]:
    """All of its workers run, also those that another test killed."""
    found = killable_stack.wait_metric(
        "router", "pagoda_router_workers", lambda n: n == ALL_WORKERS, 60
    )
    assert found == ALL_WORKERS
    yield killable_stack
    killable_stack.close_clients()
