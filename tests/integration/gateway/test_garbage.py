"""Requests that were answered leave nothing that only the garbage collector would find."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from support.running_gateway import Running

from pagoda_gateway.http.generation.response import GenerationResponse
from pagoda_gateway.http.generation.streaming import GenerationWriter
from pagoda_gateway.openai.serializer import Serializer
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.sequence import OutputSequence

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

OURS = (Generation, GenerationResponse, GenerationWriter, OutputSequence, Serializer)
CHAT: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4,
    "ignore_eos": True,
}  # fmt: skip


@pytest.fixture
def _only_what_is_found() -> Iterator[None]:
    """Keep what the collector finds, and let it look only when it is told to."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.usefixtures("_only_what_is_found")
@pytest.mark.parametrize("values", [{"stream": True}, {"stream": False}, {"stream": True, "n": 2}])
async def test_an_answer_leaves_none(running: Running, values: dict[str, Any]) -> None:
    answer = await running.http.post("/v1/chat/completions", json={**CHAT, **values})
    assert answer.status_code == 200, answer.text
    assert await running.gateway.admission.drain(60)
    await asyncio.sleep(0)
    gc.collect()

    assert [type(found).__name__ for found in gc.garbage if isinstance(found, OURS)] == []
