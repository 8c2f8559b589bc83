"""Served models without a tokenizer.json: chats, and schemas that the worker's grammars follow."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.running_gateway import Running, Start
from support.scripted_worker import ScriptedWorker, TokenAt, spell, tiny_card
from support.tiny_tokenizer import TEMPLATE
from support.vocabularies import added_tokens, sentencepiece_model, tiktoken_file, write_folder

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda_engine import has_token
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.grammar import GrammarCompiler
from pagoda_runtime.tokenizer.text import tokenizer_text
from pagoda_worker.grammars import GrammarMask

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SAID = "It is caf\u00e9 \U0001f600,   and\n\tno more."
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["caf\u00e9", "th\u00e9"]}, "sure": {"type": "boolean"}},
    "required": ["kind", "sure"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def llama(folder: Path) -> Path:
    special = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
    model = sentencepiece_model("bpe", byte_fallback=True)
    return write_folder(folder, "tokenizer.model", model, chat_template=TEMPLATE, **special)


def kimi(folder: Path) -> Path:
    config: dict[str, Any] = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": added_tokens(begin=1500, end=1501, user=1502, assistant=1503),
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    return write_folder(folder, "tiktoken.model", tiktoken_file(), "kimi_k2", **config)


@pytest.fixture(params=[llama, kimi])
def model_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder: Path = request.param(tmp_path / "model")
    return folder


def following(folder: Path, vocab_size: int, eos_id: int) -> TokenAt:
    """Say the token of the highest id that the grammar allows, as a worker masks them."""
    text = tokenizer_text(folder)
    compiler = GrammarCompiler(text, vocab_size=vocab_size, eos_token_ids=[eos_id])
    outputs: dict[str, list[int]] = {}

    def token_at(request: pb.GenerateRequest, index: int) -> int:
        output = outputs.setdefault(request.request_id, [])
        if index == len(output):
            mask = GrammarMask(compiler, compiler.compile(request.sampling.grammar), vocab_size)
            bits = mask.bitmask(output)
            output.append(max(i for i in range(vocab_size) if has_token(bits, i)))
        return output[index]

    return token_at


def worker_of(
    bus: Any, tokenizer: ModelTokenizer, token_at: TokenAt, eos_id: int
) -> ScriptedWorker:
    card = tiny_card("tiny", vocab_size=tokenizer.vocab_size)
    return ScriptedWorker(bus, card, token_at=token_at, eos_id=eos_id)


def eos_of(tokenizer: ModelTokenizer) -> int:
    (eos_id,) = tokenizer.mark_ids([tokenizer.special_tokens["eos_token"]]).values()
    return eos_id


def prompt_of(running: Running, tokenizer: ModelTokenizer) -> str:
    ids = running.worker.requests[-1].prompt_token_ids
    return tokenizer.decode(ids, skip_special_tokens=False)


async def test_a_chat(start: Start, bus: Any, model_folder: Path) -> None:
    tokenizer = ModelTokenizer.load(model_folder)
    eos_id = eos_of(tokenizer)
    ids = [*tokenizer.encode(SAID, add_special_tokens=False), eos_id]
    async with start(worker_of(bus, tokenizer, spell(ids), eos_id)) as running:
        (choice,) = (await running.chat(max_tokens=200)).json()["choices"]
        chunks = await running.events(max_tokens=200)
        prompt = prompt_of(running, tokenizer)
    streamed = "".join(
        chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]
    )
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].removeprefix(" ") == SAID
    assert streamed == choice["message"]["content"]
    bos, eos = (tokenizer.special_tokens[f"{name}_token"] for name in ("bos", "eos"))
    assert prompt.replace(" <|", "<|") == f"{bos}<|user|>hello world{eos}<|assistant|>"


async def test_a_schema(start: Start, bus: Any, model_folder: Path) -> None:
    tokenizer = ModelTokenizer.load(model_folder)
    eos_id = eos_of(tokenizer)
    says = following(model_folder, tokenizer.vocab_size, eos_id)
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    async with start(worker_of(bus, tokenizer, says, eos_id)) as running:
        (choice,) = (await running.chat(max_tokens=300, response_format=wanted)).json()["choices"]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
