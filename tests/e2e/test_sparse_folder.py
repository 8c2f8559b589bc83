"""The stack serves a folder without weights, if it is told to, and without a tokenizer.json."""

import json
from pathlib import Path

import pytest
import sentencepiece
from support.stack import running_stack
from support.tiny_checkpoints import make_tiny_checkpoint
from support.vocabularies import sentencepiece_model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = "It is caf\u00e9,   and\n\tno more."
SCHEMA = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "size": {"enum": ["th\u00e9", "caf\u00e9"]}},
    "required": ["sure", "size"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def test_its_tokens_are_sentencepieces_and_schemas_hold(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe", byte_fallback=True)
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    ends = {"bos_token_id": original.bos_id(), "eos_token_id": original.eos_id()}
    folder = make_tiny_checkpoint(tmp_path / "model", vocab_size=960, **ends)
    (folder / "generation_config.json").write_text(json.dumps(ends))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(model)
    special = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    settings = {
        "PAGODA_MODEL": str(folder),
        "PAGODA_LOAD_FORMAT": "dummy",
        "PAGODA_DTYPE": "float32",
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    with running_stack(tmp_path / "home", settings) as stack, stack.http() as http:
        asked = {"model": stack.model, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
        bound = http.post("/v1/completions", json={**asked, "response_format": form}).json()
        free = {**asked, "max_tokens": 20, "ignore_eos": True}
        answers = [http.post("/v1/completions", json=free).json() for _ in range(2)]
    prompt = [original.bos_id(), *original.encode(PROMPT)]
    assert bound["usage"]["prompt_tokens"] == len(prompt)
    said = json.loads(bound["choices"][0]["text"])
    assert said["size"] in SCHEMA["properties"]["size"]["enum"]  # type: ignore[index]
    assert isinstance(said["sure"], bool)
    assert answers[0]["usage"]["completion_tokens"] == 20
    assert answers[0]["choices"] == answers[1]["choices"]
    logs = [
        path for path in (tmp_path / "home").rglob("*.log") if "load_format" in path.read_text()
    ]
    assert {path.name.split("-")[0].split(".")[0] for path in logs} >= {"prefill", "decode"}
