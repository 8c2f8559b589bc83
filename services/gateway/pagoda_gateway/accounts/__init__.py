"""Who asks and what it cost: keys, the usage log, the ledger, receipts. Knows no tokens' text."""
