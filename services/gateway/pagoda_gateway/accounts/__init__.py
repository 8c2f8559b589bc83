"""Who asks and what it cost: keys, the usage log, the ledger, receipts.

Knows no HTTP and asks no worker. Of a request it knows what records say, and `prefixes` its prompt.
"""
