"""`pagoda keys`, `tenants`, `organisations` and `tiers`: who may use a system, and how much of it.

Knows /admin, and no Pagoda service.
"""
