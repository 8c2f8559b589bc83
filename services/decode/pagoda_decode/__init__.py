"""The decode worker: receives KV blocks or computes them, generates tokens.

Knows what sets decode apart from prefill, and owns a sequence to its end. Knows no HTTP and no
money.
"""
