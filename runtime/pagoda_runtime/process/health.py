"""Whether a process is ready, by component. Knows nothing of who asks; see `health_server`."""

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Health:
    """Readiness by component: ready when at least one is known, all are ready, and nobody stops."""

    def __init__(self) -> None:
        self._components: dict[str, tuple[bool, str]] = {}
        self._checks: dict[str, Callable[[], str]] = {}
        self._is_stopping = False

    def set_ready(self, component: str, is_ready: bool, detail: str = "") -> None:
        """Record one component's state; `detail` says why it is not ready."""
        if self._components.get(component) != (is_ready, detail):
            logger.info("%s is %s %s", component, "ready" if is_ready else "not ready", detail)
        self._components[component] = (is_ready, detail)

    def add_check(self, component: str, why_not: Callable[[], str]) -> None:
        """Ask `why_not` for one component's state whenever somebody wants to know it.

        It says why the component is not ready, or nothing, and must not wait. A check alone makes
        nobody ready: some component has to be set.
        """
        self._checks[component] = why_not

    def set_stopping(self) -> None:
        """Be not ready from now on."""
        self._is_stopping = True

    @property
    def is_ready(self) -> bool:
        """Whether work may be sent here."""
        return self._are_ready(self._states())

    def report(self) -> dict[str, Any]:
        """Return what /readyz answers. Each check is asked once: the parts agree with the whole."""
        states = self._states()
        components = {
            name: {"ready": is_ready, "detail": detail}
            for name, (is_ready, detail) in sorted(states.items())
        }
        return {
            "ready": self._are_ready(states),
            "stopping": self._is_stopping,
            "components": components,
        }

    def _are_ready(self, states: dict[str, tuple[bool, str]]) -> bool:
        is_known = bool(self._components) and not self._is_stopping
        return is_known and all(is_ready for is_ready, _ in states.values())

    def _states(self) -> dict[str, tuple[bool, str]]:
        asked = {name: why_not() for name, why_not in self._checks.items()}
        return self._components | {name: (not why, why) for name, why in asked.items()}
