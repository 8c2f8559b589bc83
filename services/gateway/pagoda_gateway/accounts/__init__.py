"""Who asks and what it cost: keys, the usage log, the ledger, receipts.

Knows no HTTP, no text and no worker; of a request it knows the two usage records.
"""
