"""`pagoda keys`, `tenants`, `ledger`: who may use a system. Knows /admin, and no Pagoda service."""
