"""The sections of the standard set: each measures one part of the system, and states its table."""
