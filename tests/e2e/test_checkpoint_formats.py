"""The stack serves a GGUF file, and a quantised checkpoint, with the tokens of transformers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support.demo import DEMO_MODEL
from support.gguf_files import write_gguf
from support.greedy_oracle import GreedyOracle
from support.quantised_checkpoints import awq, quantised_pair
from support.stack import running_stack
from transformers import AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 48
CHAT = [{"role": "user", "content": "What is the weather like in Rome?"}]
Folders = tuple[Path, Path]
"""What is served, and what transformers reads: the same weights."""


def gguf_alone(place: Path) -> Folders:
    """A folder with nothing but the file: its tokenizer and template are in it."""
    path = write_gguf(DEMO_MODEL, place / "shelf" / "demo.F32.gguf")
    assert [*path.parent.iterdir()] == [path]
    return path.parent, DEMO_MODEL


def quantised(place: Path) -> Folders:
    """Codes, and in another folder what they stand for."""
    return quantised_pair(Path(shutil.copytree(DEMO_MODEL, place / "demo")), awq(64))


@pytest.mark.parametrize("make", [gguf_alone, quantised])
def test_a_chat_has_the_tokens_of_transformers(
    tmp_path: Path, make: Callable[[Path], Folders]
) -> None:
    served, dense = make(tmp_path)
    files = {path.name for path in served.iterdir()}
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    expected = GreedyOracle(dense).greedy(prompt, MAX_TOKENS)
    settings = {"PAGODA_MODEL": str(served), "PAGODA_DTYPE": "float32"}
    with running_stack(tmp_path / "home", settings) as stack, stack.http() as http:
        answer = asked(http, stack.model, ignore_eos=True, return_token_ids=True)
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
        bound = asked(http, stack.model, response_format=form)
    choice = answer["choices"][0]
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert choice["token_ids"] == expected
    assert choice["message"]["content"] == tokenizer.decode(expected, skip_special_tokens=True)
    assert bound["choices"][0]["message"]["content"].strip().lstrip("-").isdigit()
    assert {path.name for path in served.iterdir()} == files  # nothing was written beside them


def asked(http: httpx.Client, model: str, **fields: object) -> dict:
    """Return the answer of a greedy chat."""
    body = {"model": model, "messages": CHAT, "max_tokens": MAX_TOKENS, "temperature": 0, **fields}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())
