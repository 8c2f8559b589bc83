"""What is wrong with an input file is said by line."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from support.batch_files import ENDPOINT, batch_line, numbered

from pagoda_gateway.batches.line_reader import read_lines
from pagoda_gateway.batches.validation import MAX_ERRORS, Validation, validate
from pagoda_gateway.errors import ModelNotFoundError


async def found_in(data: bytes, max_lines: int = 10, max_line_bytes: int = 1000) -> Validation:
    async def chunks() -> AsyncIterator[bytes]:
        yield data

    def check_model(name: str) -> None:
        if name != "tiny":
            raise ModelNotFoundError(f"no model {name}")

    return await validate(
        read_lines(chunks(), max_line_bytes),
        endpoint=ENDPOINT,
        max_lines=max_lines,
        max_line_bytes=max_line_bytes,
        check_model=check_model,
    )


def codes(found: Validation) -> list[tuple[int | None, str, str | None]]:
    return [(error["line"], error["code"], error["param"]) for error in found.errors]


async def test_a_good_file() -> None:
    found = await found_in(b"\n" + numbered(10) + b"\n\n")
    assert (found.num_lines, found.model, found.errors) == (10, "tiny", [])


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"[" * 200 + b"]" * 200, "invalid_json_line", None),
        (b"x" * 1001, "line_too_long", None),
        (orjson.dumps({**batch_line("a"), "custom_id": 5}), "invalid_custom_id", "custom_id"),
        (orjson.dumps(batch_line("x" * 513, prompt="")), "invalid_custom_id", "custom_id"),
        (orjson.dumps({**batch_line("a"), "method": "GET"}), "invalid_method", "method"),
        (orjson.dumps(batch_line("a", url="/v1/embeddings")), "invalid_url", "url"),
        (orjson.dumps({**batch_line("a"), "body": []}), "invalid_body", "body"),
        (orjson.dumps(batch_line("a", stream=True)), "invalid_body", "body.stream"),
        (orjson.dumps(batch_line("a", model="gpt-9")), "model_not_found", "body.model"),
        (orjson.dumps(batch_line("a", model=None)), "model_not_found", "body.model"),
    ],
)  # fmt: skip
async def test_a_bad_line(line: bytes, code: str, param: str | None) -> None:
    found = await found_in(orjson.dumps(batch_line("good")) + b"\n" + line)
    assert codes(found) == [(2, code, param)]


async def test_a_custom_id_is_used_once() -> None:
    twice: list[dict[str, Any]] = [batch_line("a"), batch_line("b"), batch_line("a")]
    found = await found_in(b"\n".join(map(orjson.dumps, twice)))
    assert codes(found) == [(3, "duplicate_custom_id", "custom_id")]
    assert "line 1" in found.errors[0]["message"]


async def test_no_request_and_too_many() -> None:
    assert codes(await found_in(b"\n \n")) == [(None, "empty_file", None)]
    found = await found_in(numbered(30), max_lines=10)
    assert codes(found) == [(11, "too_many_requests", None)]


async def test_errors_are_told_up_to_a_limit() -> None:
    assert len((await found_in(b"{\n" * 500, max_lines=500)).errors) == MAX_ERRORS
