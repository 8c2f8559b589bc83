"""Accounts of a system: keys, tenants, prices, ledger. Knows /admin, and no Pagoda service."""
