"""Input files of batches, their answers read back, and what stores of both are tested with."""

from typing import Any

import orjson

from pagoda_gateway.batches.file_store import FileLimits

LIMITS = FileLimits(
    file_bytes=1 << 20, tenant_bytes=2 << 20, total_bytes=3 << 20, keep_seconds=30 * 86_400
)
ENDPOINT = "/v1/completions"


class Clock:
    """Seconds; they pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def batch_line(name: str, url: str = ENDPOINT, **body: Any) -> dict[str, Any]:
    """One request; its body is a completion unless it says otherwise."""
    values = {"model": "tiny", "prompt": name, "max_tokens": 4, **body}
    return {"custom_id": name, "method": "POST", "url": url, "body": values}


def jsonl(*lines: dict[str, Any]) -> bytes:
    """An input file."""
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def numbered(count: int, **body: Any) -> bytes:
    """An input file of `count` completions: line-0 ..."""
    return jsonl(*(batch_line(f"line-{number}", **body) for number in range(count)))


def answers(data: bytes) -> list[dict[str, Any]]:
    """Lines of an output or error file."""
    return [orjson.loads(line) for line in data.splitlines()]
