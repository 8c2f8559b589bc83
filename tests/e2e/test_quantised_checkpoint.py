"""The whole stack serves a quantised checkpoint with the tokens of what its codes stand for."""

import shutil
from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.greedy_oracle import GreedyOracle
from support.quantised_checkpoints import awq, quantised_pair
from support.stack import running_stack
from transformers import AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 48
CHAT = [{"role": "user", "content": "What is the weather like in Rome?"}]


def test_a_chat_has_the_tokens_of_transformers(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO_MODEL, tmp_path / "demo"))
    coded, dense = quantised_pair(folder, awq(64))
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    expected = GreedyOracle(dense).greedy(prompt, MAX_TOKENS)
    settings = {"PAGODA_MODEL": str(coded), "PAGODA_DTYPE": "float32"}
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
        assert choice["token_ids"] == expected
        assert choice["message"]["content"] == tokenizer.decode(expected, skip_special_tokens=True)
