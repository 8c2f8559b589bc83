"""The life of a process: start, signals, health, tasks, end."""
