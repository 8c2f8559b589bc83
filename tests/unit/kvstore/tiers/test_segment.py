import os
from pathlib import Path

import pytest
from support.stored_blocks import IDENTITY, make_block

from pagoda_kvstore.errors import SegmentFormatError
from pagoda_kvstore.tiers.segment import (
    HEADER_BYTES,
    SegmentHeader,
    SegmentWriter,
    read_blocks,
    scan,
)

HEADER = SegmentHeader(IDENTITY, 1000, 7)


def write_segment(path: Path, names: str) -> None:
    writer = SegmentWriter(path, HEADER)
    for name in names:
        writer.append(make_block(name, "parent" if name != "a" else ""))
    writer.close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_scan_finds_what_was_written(tmp_path: Path) -> None:
    write_segment(tmp_path / "s", "abc")
    found = scan(tmp_path / "s")
    assert found.header == HEADER
    assert [record.block_hash for record in found.records] == [
        make_block(name).key.block_hash for name in "abc"
    ]
    assert (found.num_bad_records, found.num_torn_bytes) == (0, 0)


def test_blocks_come_back_with_their_parents(tmp_path: Path) -> None:
    write_segment(tmp_path / "s", "ab")
    assert read_blocks(tmp_path / "s", HEADER, [1, 0]) == [
        make_block("b", "parent"),
        make_block("a"),
    ]


def test_scan_reports_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_segment(path, "ab")
    os.truncate(path, path.stat().st_size - 10)
    found = scan(path)
    assert (found.num_slots, found.num_torn_bytes) == (1, HEADER.stride - 10)


def test_damaged_record_header_hides_no_other_record(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_segment(path, "abc")
    overwrite(path, HEADER.offset(1) + 20, b"\xff")
    found = scan(path)
    assert [record.slot for record in found.records] == [0, 2]
    assert found.num_bad_records == 1
    assert read_blocks(path, HEADER, [1]) == [None]


@pytest.mark.parametrize(
    ("offset", "data", "reason"),
    [
        (0, b"SOMEBODY", "no segment header"),
        (8, b"\x02", "checksum"),
        (20, b"\xff", "checksum"),
    ],
)
def test_foreign_or_damaged_header_is_refused(
    tmp_path: Path, offset: int, data: bytes, reason: str
) -> None:
    path = tmp_path / "s"
    write_segment(path, "a")
    overwrite(path, offset, data)
    with pytest.raises(SegmentFormatError, match=reason):
        scan(path)


def test_file_shorter_than_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(HEADER.encode()[: HEADER_BYTES - 1])
    with pytest.raises(SegmentFormatError, match="no segment header"):
        scan(tmp_path / "s")


def test_writer_continues_after_the_last_whole_slot(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_segment(path, "ab")
    writer = SegmentWriter(path, HEADER, num_slots=1)
    assert writer.append(make_block("c")) == 1
    writer.close()
    assert read_blocks(path, HEADER, [0, 1]) == [make_block("a"), make_block("c")]
