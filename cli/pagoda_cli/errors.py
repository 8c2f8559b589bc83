"""What ends a command with one line, wherever in it it is raised."""


class CommandError(Exception):
    """What was asked for cannot be done; says why and what to do."""
