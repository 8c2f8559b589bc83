"""Chaos and soak: the running system under faults, seen from outside.

Owns the load, the faults, and what must hold afterwards. Knows `pagoda up`, HTTP, process ids and
/metrics; nothing of how a service works inside.
"""
