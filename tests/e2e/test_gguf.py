"""The whole stack serves a GGUF file as it serves the folder that the file was made of."""

from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.gguf_files import write_gguf
from support.greedy_oracle import GreedyOracle
from support.stack import running_stack
from transformers import AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 48
CHAT = [{"role": "user", "content": "What is the weather like in Rome?"}]


def test_a_chat_has_the_tokens_of_transformers(tmp_path: Path) -> None:
    path = write_gguf(DEMO_MODEL, tmp_path / "shelf" / "demo.F32.gguf")
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    expected = GreedyOracle(DEMO_MODEL).greedy(prompt, MAX_TOKENS)
    settings = {"PAGODA_MODEL": str(path.parent), "PAGODA_DTYPE": "float32"}
    with running_stack(tmp_path / "home", settings) as stack, stack.http() as http:
        body = {
            "model": stack.model,
            "messages": CHAT,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert answer.json()["usage"]["prompt_tokens"] == len(prompt)
        assert choice["token_ids"] == expected
        assert choice["message"]["content"] == tokenizer.decode(expected, skip_special_tokens=True)
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
        bound = http.post(
            "/v1/chat/completions", json={**body, "ignore_eos": False, "response_format": form}
        )
        assert bound.status_code == 200, bound.text
        assert bound.json()["choices"][0]["message"]["content"].strip().lstrip("-").isdigit()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
