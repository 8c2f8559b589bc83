"""All policies of this gateway, and which of them applies to whom."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from pagoda_gateway.large_bodies import LargeBodies
from pagoda_gateway.safety.moderators.guarded import GuardedModerator
from pagoda_gateway.safety.policies.file import EVERYBODY, SafetyFile, read_safety_file
from pagoda_gateway.safety.policies.policy import Policy


class Policies:
    """In the order of the file: the first that fits applies.

    Attributes:
        large: where much text is looked through.
    """

    def __init__(self, file: SafetyFile) -> None:
        """Compile patterns, load classifiers.

        Raises:
            SafetyFileError: something cannot be used.
        """
        self._moderators = {
            name: GuardedModerator(name, settings) for name, settings in file.moderators.items()
        }
        self.large = LargeBodies()
        self._policies = [Policy(settings, self._moderators) for settings in file.policies]

    def of(self, tenant: str, model: str) -> Policy | None:
        """Return the policy of a tenant's requests for a model; None: there is none."""
        for policy in self._policies:
            if _has(policy.tenants, tenant) and _has(policy.models, model):
                return policy
        return None

    def of_tenant(self, tenant: str) -> Policy | None:
        """Return the tenant's first policy, whatever model it is for."""
        return next((p for p in self._policies if _has(p.tenants, tenant)), None)

    async def close(self) -> None:
        """Give back what moderators hold, and look through nothing more."""
        self.large.close()
        for moderator in self._moderators.values():
            await moderator.close()


@contextlib.asynccontextmanager
async def open_policies(path: Path | None) -> AsyncIterator[Policies]:
    """Yield the policies of a file; without one, none.

    Raises:
        SafetyFileError: it cannot be used.
    """
    policies = Policies(read_safety_file(path) if path is not None else SafetyFile())
    try:
        yield policies
    finally:
        await policies.close()


def _has(names: frozenset[str], name: str) -> bool:
    return name in names or EVERYBODY in names
