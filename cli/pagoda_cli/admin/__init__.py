"""Accounts of a system: keys, tenants, prices, usage, prefixes. Knows /admin and no service."""
