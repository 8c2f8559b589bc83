"""Input files of batches, and their answers read back."""

from typing import Any

import orjson

ENDPOINT = "/v1/completions"


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
