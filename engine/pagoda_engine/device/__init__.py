"""How a step's work gets to the device and its tokens back: queues, events, graph capture.

Knows streams and clocks. Knows nothing of what the work computes.
"""

from pagoda_engine.device.parts import Forward, GraphCapture, device_parts
from pagoda_engine.device.queue import DeviceQueue, InlineQueue, LaunchedWork, Recorder, Work

__all__ = [
    "DeviceQueue",
    "Forward",
    "GraphCapture",
    "InlineQueue",
    "LaunchedWork",
    "Recorder",
    "Work",
    "device_parts",
]
