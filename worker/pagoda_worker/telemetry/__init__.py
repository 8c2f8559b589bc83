"""What a worker says of itself to people: metrics, spans of stages, steps' timelines.

Knows what was measured. Knows nothing of what routers decide by: that is `heartbeat`'s.
"""
