"""All of the money, tied together."""

from dataclasses import dataclass

from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.chains import Chains
from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.accounts.money.prices import Prices
from pagoda_gateway.accounts.money.receipts import Receipts
from pagoda_gateway.accounts.money.statements import Statements
from pagoda_gateway.accounts.tenancy.records import Announce
from pagoda_gateway.config import GatewaySettings


@dataclass(frozen=True, slots=True)
class Money:
    """What requests cost and have cost."""

    prices: Prices
    book: PriceBook
    receipts: Receipts
    chains: Chains
    statements: Statements

    @classmethod
    async def of(cls, ledger: Ledger, announce: Announce, settings: GatewaySettings) -> "Money":
        """Return what a ledger holds; the book knows its prices.

        Args:
            ledger: with all tables.
            announce: tells gateways of changed prices.
            settings: how long receipts wait.
        """
        database = ledger.database
        prices = Prices(database, announce, database.now)
        return cls(
            prices=prices,
            book=PriceBook(await prices.all()),
            receipts=Receipts(ledger, wait_seconds=settings.receipt_wait_seconds),
            chains=Chains(database),
            statements=Statements(database),
        )
