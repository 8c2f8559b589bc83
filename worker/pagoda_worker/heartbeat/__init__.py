"""What a worker tells routers and gateways about itself: what it serves, how busy, how fast.

Knows measurements. Knows nothing of who decides by them.
"""
