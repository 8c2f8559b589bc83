"""`pagoda keys` and `pagoda tenants`: who may use a system. Knows /admin, and no Pagoda service."""
