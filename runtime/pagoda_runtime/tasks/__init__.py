"""What asyncio leaves open: owned background tasks, kept cancellations, waits before a retry.

Knows no bus, no process and no service.
"""
