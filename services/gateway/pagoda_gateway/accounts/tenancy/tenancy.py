"""All of the tenancy, tied together."""

from dataclasses import dataclass

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.tenancy.api_keys import ApiKeys
from pagoda_gateway.accounts.tenancy.organisations import Organisations
from pagoda_gateway.accounts.tenancy.records import Announce, Clock
from pagoda_gateway.accounts.tenancy.tenants import Tenants
from pagoda_gateway.accounts.tenancy.tiers import Tiers


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who may use this system."""

    organisations: Organisations
    tiers: Tiers
    tenants: Tenants
    api_keys: ApiKeys

    @classmethod
    def of(
        cls, database: Database, announce: Announce | None = None, clock: Clock | None = None
    ) -> "Tenancy":
        """Return what a database holds.

        Args:
            database: with all tables.
            announce: tells gateways of changed keys and tenants; None: nobody needs to know.
            clock: of all times that are stored, and by which keys end; None: the database's.
        """
        announce, clock = announce or _tell_nobody, clock or database.now
        tiers = Tiers(database, announce, clock)
        organisations = Organisations(database, tiers, announce, clock)
        tenants = Tenants(database, organisations, tiers, announce, clock)
        api_keys = ApiKeys(database, tenants, tiers, announce, clock)
        return cls(organisations, tiers, tenants, api_keys)


async def _tell_nobody(change: AccountChange) -> None:
    pass
