"""`pagoda keys`, `tenants` and `prefixes`: the administration. Knows /admin, no Pagoda service."""
