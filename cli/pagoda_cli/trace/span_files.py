"""The span files of a stack, `$PAGODA_HOME/traces/*.jsonl`.

Knows which lines to look at; what is in a line is `span`'s business.
"""

from collections.abc import Iterator
from pathlib import Path

from pagoda_cli.trace.span import Span, read_line


class SpanFiles:
    """A SpanSource over the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def spans(self, needle: str) -> Iterator[Span]:
        """Yield the spans of the lines that contain `needle`; parses no other line."""
        wanted = needle.encode()
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                for line in file:
                    # A line without its end is still being written.
                    if wanted in line and line.endswith(b"\n"):
                        try:
                            yield from read_line(line)
                        except (ValueError, KeyError, TypeError, AttributeError):
                            continue

    def not_found(self, request_id: str) -> str:
        """Return where was looked."""
        folder = self._folder
        if not folder.is_dir():
            return (
                f"no span files: {folder} does not exist. Is PAGODA_HOME the one of the running "
                "stack (--home)? A stack that sends spans to a collector has them there instead"
            )
        num_files = len(list(folder.glob("*.jsonl")))
        return (
            f"no request {request_id!r} in the {num_files} span files of {folder}. It is written "
            "when it ends, and old spans go when a file has rotated twice"
        )
