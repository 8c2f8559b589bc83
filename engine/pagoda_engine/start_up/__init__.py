"""From a model folder to an engine that is ready: sized, loaded, captured, warm.

Knows the device, its memory and what a step takes of it. Knows no settings of a service: it names
its own options. Knows nothing of who waits for the engine, or of what it will be asked.
"""
