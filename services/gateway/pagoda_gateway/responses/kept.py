"""What keeps responses and conversations for clients that ask again, at any replica.

Knows no field of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Value = dict[str, Any]
Become = Callable[[Value], Value]
"""Makes what a value becomes of what it is; what it raises ends the change."""
Change = tuple[str, Become]
"""An id, and what becomes of its value."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value, and the gateway whose work it is; None: it has ended."""

    value: Value
    gateway_id: str | None


class ResponseStore(Protocol):
    """Keeps JSON values by tenant and id; another tenant's does not exist for one.

    Within a sum of bytes and for a while, but as long as it runs what runs. Whatever keeps them not
    answering in time is an UnavailableError.
    """

    def now(self) -> float:
        """Return Unix seconds, as all replicas have them."""

    async def put(
        self, tenant: str, object_id: str, value: Value, *, is_running: bool = False
    ) -> bool:
        """Keep a new value; return whether there was room for it.

        Args:
            tenant: whose it is.
            object_id: of it.
            value: JSON.
            is_running: it is the work of this gateway, and stays until it has ended.
        """

    async def end(
        self,
        tenant: str,
        object_id: str,
        become: Become,
        also: Change | None = None,
    ) -> Value | None:
        """End what runs, at whatever gateway; return what is kept of it from now on.

        Args:
            tenant: whose it is.
            object_id: of it.
            become: makes that of the value that it had.
            also: of the tenant's, changes with it if it is there and does not run: both or neither.

        Returns:
            None: it does not run, or is not there, or there was no room for it: it is gone.
        """

    async def change(self, tenant: str, object_id: str, become: Become) -> Value | None:
        """Change what does not run, and keep it as if it were new; return what it is now.

        Args:
            tenant: whose it is.
            object_id: of it.
            become: makes that of the value that it had.

        Returns:
            None: it runs, or is not there.
        """

    async def get(self, tenant: str, object_id: str) -> Kept | None:
        """Return the tenant's value of this id; None: there is none."""

    async def delete(self, tenant: str, object_id: str) -> bool:
        """Forget a value; return whether it was there."""

    async def running(self, *, anywhere: bool = False) -> set[tuple[str, str]]:
        """Return tenant and id of what is the work of this gateway, or of any."""

    async def sweep(self) -> int:
        """Delete some that have expired, or are a deleted tenant's; return how many."""
