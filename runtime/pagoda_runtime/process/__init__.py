"""The life of a service process: start, signals, health, end.

Owns the event loop and the exit code. Knows nothing of the work that it runs.
"""
