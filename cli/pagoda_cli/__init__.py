"""The `pagoda` command: runs the system on one machine, talks to it, measures it.

Owns the terminal: flags, tables, exit codes, and the supervisor of `pagoda up`. Knows the gateway
by its public API only, the services by their names and settings; knows no tensors and no bus.
"""
