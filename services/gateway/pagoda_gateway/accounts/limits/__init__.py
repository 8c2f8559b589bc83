"""Limits of keys, tenants and organisations: taken before a request runs, given back after it.

Counts in Redis, and seeds budgets from the ledger. Knows no HTTP.
"""
