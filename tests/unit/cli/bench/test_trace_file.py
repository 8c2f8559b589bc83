"""Both trace formats, plain and compressed, and what is wrong with a bad one."""

from pathlib import Path

import pytest
import zstandard

from pagoda_cli.bench.errors import TraceFileError
from pagoda_cli.bench.trace_file import TraceEntry, read_trace

MOONCAKE = (
    '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    "\n"
    '{"timestamp": 4500, "input_length": 10, "output_length": 2, "hash_ids": [0]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:16:00,1,2\n"
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    content = text.encode()
    path.write_bytes(zstandard.compress(content) if name.endswith(".zst") else content)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.zst"])
def test_mooncake(tmp_path: Path, name: str) -> None:
    assert list(read_trace(written(tmp_path, name, MOONCAKE))) == [
        TraceEntry(0.0, 6758, 500, (0, 1)),
        TraceEntry(3.5, 10, 2, (0,)),
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.zst"])
def test_azure(tmp_path: Path, name: str) -> None:
    entries = list(read_trace(written(tmp_path, name, AZURE)))
    assert [(e.num_prompt_tokens, e.num_output_tokens) for e in entries] == [
        (374, 44),
        (396, 109),
        (1, 2),
    ]
    assert [e.offset_seconds for e in entries] == pytest.approx([0.0, 4.314579, 13.31941], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("when,what\n1,2\n", "TIMESTAMP, ContextTokens, GeneratedTokens missing"),
        (AZURE.replace("374", "many"), "many"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "later"), "line 2.*'later'"),
        (AZURE.replace("18:16:00", "18:15:48"), "line 4.*sort the trace"),
        ('{"timestamp": 1, "input_length": 2}\n', "output_length"),
        ('{"timestamp": 1\n', "after line 0"),
    ],
)
def test_bad_trace_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        list(read_trace(written(tmp_path, "bad", text)))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceFileError, match="cannot read"):
        list(read_trace(tmp_path / "none.csv"))
