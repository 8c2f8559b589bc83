"""A package: so pytest ends its stack with its last test, not with the session."""
