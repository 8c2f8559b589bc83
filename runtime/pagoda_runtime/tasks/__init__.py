"""What asyncio leaves open: owned background tasks, kept cancellations, when to try again.

Knows no bus, no process and no service.
"""
