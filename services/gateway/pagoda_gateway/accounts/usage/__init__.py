"""Usage records on their way: outbox on this host, JetStream, ledger; and from workers.

Knows nothing of keys and prices.
"""
