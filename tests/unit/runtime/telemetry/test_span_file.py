"""Spans in a file whose disk fails, and what is in it afterwards."""

import logging
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from support.span_files import read_spans

from pagoda_runtime.telemetry.span_file import SpanFileExporter


def a_span(name: str) -> ReadableSpan:
    provider = TracerProvider(
        resource=Resource({"service.name": "pagoda-test"}), shutdown_on_exit=False
    )
    span = provider.get_tracer("t").start_span(name)
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


@contextmanager
def files_of(max_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond, as on a full disk: a part is written before."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def names_in(folder: Path) -> list[str]:
    return [span["name"] for span in read_spans(folder)]


def test_no_part_of_a_line_stays_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    exporter = SpanFileExporter(path)
    assert exporter.export([a_span("before")]) is SpanExportResult.SUCCESS
    size = path.stat().st_size
    with files_of(size + 50):
        assert exporter.export([a_span("lost")]) is SpanExportResult.FAILURE
    assert path.stat().st_size == size
    assert exporter.export([a_span("after")]) is SpanExportResult.SUCCESS
    assert names_in(tmp_path) == ["before", "after"]


def test_a_full_disk_is_logged_once_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = SpanFileExporter(tmp_path / "s.jsonl")
    with caplog.at_level(logging.INFO):
        with files_of(50):
            for _ in range(3):
                exporter.export([a_span("lost")])
        for _ in range(2):
            exporter.export([a_span("written")])
    begin, end = caplog.records
    assert (begin.levelname, begin.exc_info) == ("WARNING", None)
    for part in (str(tmp_path / "s.jsonl"), "File too large", "PAGODA_TRACE_DIR"):
        assert part in begin.getMessage()
    assert end.getMessage() == f"spans are written to {tmp_path / 's.jsonl'} again"


def test_a_line_that_was_cut_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"resourceSpans":[{"res')
    SpanFileExporter(path).export([a_span("after")])
    cut, whole = path.read_text().splitlines(keepends=True)
    assert cut == '{"resourceSpans":[{"res\n'
    path.write_text(whole)
    assert names_in(tmp_path) == ["after"]


def test_a_folder_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    exporter = SpanFileExporter(tmp_path / "spans" / "s.jsonl")
    shutil.rmtree(tmp_path / "spans")
    assert exporter.export([a_span("a")]) is SpanExportResult.SUCCESS
    assert names_in(tmp_path / "spans") == ["a"]
