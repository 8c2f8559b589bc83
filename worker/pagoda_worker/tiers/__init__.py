"""Which blocks this worker holds, and how they reach the kvstore and the routers, and come back.

Knows hashes, bytes and the kvstore of this host. Knows nothing of other workers.
"""
