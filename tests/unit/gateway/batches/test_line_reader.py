"""Lines come out as they went in, wherever chunks end."""

import asyncio
import random
from collections.abc import AsyncIterator

from support.seeds import seed_of_tests

from pagoda_gateway.batches.line_reader import Line, read_lines


async def lines_of(data: bytes, cuts: list[int], max_bytes: int) -> list[Line]:
    async def chunks() -> AsyncIterator[bytes]:
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            yield data[start:end]

    return [line async for line in read_lines(chunks(), max_bytes)]


async def test_any_chunks_make_the_same_lines() -> None:
    rng = random.Random(seed_of_tests())
    for _ in range(200):
        texts = [bytes(rng.choices(b"ab ", k=rng.randrange(9))) for _ in range(rng.randrange(8))]
        data = b"\n".join(texts) + rng.choice([b"", b"\n"])
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
        expected = [
            Line(number, len(text), text if len(text) <= 5 else None)
            for number, text in enumerate(texts, 1)
            if text.strip() or len(text) > 5
        ]
        assert await lines_of(data, cuts, max_bytes=5) == expected


async def test_an_empty_file_has_no_lines() -> None:
    assert await lines_of(b"", [], max_bytes=5) == []


async def test_others_run_between_lines_without_end() -> None:
    reading = asyncio.create_task(lines_of(b"\n" * 10_000, [], max_bytes=5))
    num_turns = 0
    while not reading.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert num_turns > 10
    assert reading.result() == []
