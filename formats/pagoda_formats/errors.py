"""What reading a file of a format raises."""

from pathlib import Path


class FormatError(Exception):
    """A file is not what its format says, or more than any real one has."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")
