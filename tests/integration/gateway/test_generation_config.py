"""A model's own defaults of sampling, through every way to ask for an answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.running_gateway import running_gateway
from support.scripted_worker import ScriptedWorker
from support.tiny_tokenizer import write_model_folder

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "max_tokens": 50},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    said = {"temperature": 0.5, "top_k": 7, "max_new_tokens": 9}
    write_model_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    return tmp_path


@pytest.mark.parametrize(("setting", "is_taken"), [("auto", True), ("none", False)])
async def test_defaults_are_the_models_own_unless_it_is_switched_off(
    nats_common: CommonSettings, bus: Bus, folder: Path, setting: str, is_taken: bool
) -> None:
    worker = ScriptedWorker(bus)
    async with running_gateway(
        nats_common, bus, folder, worker, generation_config=setting
    ) as running:
        for path, sent in ASKED.items():
            (await running.http.post(path, json=sent)).raise_for_status()
            found = worker.requests[-1].sampling
            assert (found.temperature, found.top_k) == ((0.5, 7) if is_taken else (1, 0)), path
        limits = [request.sampling.max_tokens for request in worker.requests]
        room = worker.card.max_model_len - len(worker.requests[0].prompt_token_ids)
        assert limits[:2] == [9 if is_taken else room, 50]
        assert limits[3] == (9 if is_taken else 16)
        own = {**CHAT, "temperature": 0, "max_tokens": 12, "top_k": -1}
        (await running.http.post("/v1/chat/completions", json=own)).raise_for_status()
        found = worker.requests[-1].sampling
        assert (found.temperature, found.top_k, found.max_tokens) == (0, 0, 12)
