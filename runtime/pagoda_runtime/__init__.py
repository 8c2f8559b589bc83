"""What every service stands on: settings, NATS, gRPC, telemetry, the life of a process, identities.

Owns how processes are configured, talk and stop. Knows no service's business: what a message asks
for, what a block holds and what a request costs is decided above it.
"""
