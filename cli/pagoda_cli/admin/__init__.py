"""Accounts of a system: keys, limits, prices, usage, prefixes. Knows /admin, and no service."""
