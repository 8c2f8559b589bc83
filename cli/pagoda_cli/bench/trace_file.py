"""Traces of real use: Mooncake JSON lines and Azure CSV, plain or .zst.

Yields entries one at a time, so that a trace of any length costs no memory.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO, TypeAlias

from pagoda_cli.bench.errors import TraceFileError

MOONCAKE_BLOCK_TOKENS = 512
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# "2023-11-16 18:15:46.6805900": seven digits of a second are one more than datetime reads.
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:\+00:00|Z)?")

_Fields: TypeAlias = tuple[int, int, tuple[int, ...]]  # prompt tokens, output tokens, hash ids


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One request of a trace; `hash_ids` name its prefix blocks of MOONCAKE_BLOCK_TOKENS tokens."""

    offset_seconds: float  # since the trace's first request
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> Iterator[TraceEntry]:
    """Yield the entries of `path`; the format is told by its first character.

    Raises:
        TraceFileError: unreadable, a malformed line, or timestamps that go back.
    """
    with _open_text(path) as file:
        first_line = file.readline()
        lines = _chain(first_line, file)
        entries = _mooncake(lines) if first_line.lstrip().startswith("{") else _azure(lines)
        first_seconds: float | None = None
        last_seconds = 0.0
        number = 0
        try:
            for number, seconds, entry in entries:
                if first_seconds is None:
                    first_seconds = last_seconds = seconds
                if seconds < last_seconds:
                    raise TraceFileError(
                        f"{path}, line {number}: its timestamp is {last_seconds - seconds:.3f} s "
                        "before the line above; sort the trace by time"
                    )
                last_seconds = seconds
                yield TraceEntry(seconds - first_seconds, *entry)
        except (ValueError, KeyError, TypeError) as error:
            raise TraceFileError(f"{path}, after line {number}: {error!r}") from error


def _mooncake(lines: Iterator[str]) -> Iterator[tuple[int, float, _Fields]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = json.loads(line)
        fields = (
            int(row["input_length"]),
            int(row["output_length"]),
            tuple(int(hash_id) for hash_id in row.get("hash_ids", ())),
        )
        yield number, float(row["timestamp"]) / 1e3, fields


def _azure(lines: Iterator[str]) -> Iterator[tuple[int, float, _Fields]]:
    rows = csv.DictReader(lines)
    missing = [name for name in _AZURE_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(
            f"neither JSON lines nor a CSV with {', '.join(_AZURE_COLUMNS)}: "
            f"{', '.join(missing)} missing"
        )
    for row in rows:
        match = _AZURE_TIME.fullmatch(row["TIMESTAMP"])
        if match is None:
            raise ValueError(f"TIMESTAMP {row['TIMESTAMP']!r} is no UTC time")
        seconds = datetime.fromisoformat(match[1] + "+00:00").timestamp() + float(match[2] or 0)
        yield rows.line_num, seconds, (int(row["ContextTokens"]), int(row["GeneratedTokens"]), ())


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    try:
        raw = path.open("rb")
    except OSError as error:
        raise TraceFileError(f"cannot read the trace {path}: {error.strerror}") from error
    with raw:
        if path.suffix != ".zst":
            yield io.TextIOWrapper(raw, encoding="utf-8")
            return
        try:
            import zstandard
        except ImportError as error:
            raise TraceFileError(
                f"{path} is compressed: pip install zstandard, or decompress it with zstd -d"
            ) from error
        with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            yield io.TextIOWrapper(reader, encoding="utf-8")


def _chain(first_line: str, file: TextIO) -> Iterator[str]:
    yield first_line
    yield from file
