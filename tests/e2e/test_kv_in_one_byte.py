"""The whole stack with KV in one byte.

Both number formats: tests/integration/worker/test_kv_dtypes.py. Layers with windows:
test_golden_tokens.py.
"""

from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.stack import Stack, running_stack
from support.tiny_engine import greedy, make_driver

from pagoda_engine import EngineConfig, load_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 48
PROMPT = [(i * 37) % 250 + 1 for i in range(150)]


def completion(stack: Stack, prompt: list[int]) -> tuple[list[int], int]:
    """Return the tokens of a greedy completion, and how many of its prompt were cached."""
    body = {
        "model": stack.model,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    with stack.http() as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return answer.json()["choices"][0]["token_ids"], usage["prompt_tokens_details"]["cached_tokens"]


def test_cold_and_warm_answers_with_kv_in_one_byte_are_the_engines(tmp_path: Path) -> None:
    config = {"dtype": "float32", "max_model_len": 512, "kv_cache_dtype": "fp8"}
    model = load_model(DEMO_MODEL, EngineConfig(**config))
    driver = make_driver(model, block_size=16, num_blocks=64, max_model_len=512)
    expected = driver.generate([PROMPT], sampling=greedy(MAX_TOKENS))[0]
    settings = {"PAGODA_DTYPE": "float32", "PAGODA_KV_CACHE_DTYPE": "fp8"}
    with running_stack(tmp_path, settings) as stack:
        cold, warm = completion(stack, PROMPT), completion(stack, PROMPT)
        with stack.http() as http:
            kv_cache = http.get(f"/v1/models/{stack.model}").json()["kv_cache"]
    assert (cold[0], warm[0]) == (expected, expected)
    assert (cold[1], warm[1]) == (0, 144)
    shape = model.description
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    assert (kv_cache["dtype"], kv_cache["bytes_per_token"]) == ("float8_e4m3fn", per_token)
    assert kv_cache["block_bytes"] == 16 * per_token
