import pytest
from support.fixtures import *  # noqa: F403


@pytest.fixture(autouse=True)
def _hanging_handlers_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests serve what never answers: nothing of it is worth a second at their end."""
    monkeypatch.setattr("pagoda_runtime.messaging.bus.CLOSE_GRACE_SECONDS", 0.05)
