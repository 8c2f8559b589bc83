"""LoRA adapters through the whole stack: token-exact beside their base, loaded, used, unloaded."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.adapters import MODULES, make_tiny_adapter
from support.greedy_oracle import GreedyOracle
from support.processes import busy_decode_workers
from support.stack import Stack, running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_TOKENS = 48
LONG = 1200  # to be killed in the middle
PROMPT = list(range(40))
ADMIN_KEY = "admin-key-of-a-test"


def merged(base: Path, adapter: Path, folder: Path) -> GreedyOracle:
    """Return the oracle of a checkpoint with an adapter of `make_tiny_adapter` in its weights."""
    folder.mkdir()
    for path in base.iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    weights, added = load_file(base / "model.safetensors"), load_file(adapter / WEIGHTS)
    scale = 2.0  # lora_alpha / r
    for name in weights:
        own = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{own}.lora_A.weight" in added:
            product = added[f"{own}.lora_B.weight"] @ added[f"{own}.lora_A.weight"]
            weights[name] = weights[name] + scale * product
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return GreedyOracle(folder)


WEIGHTS = "adapter_model.safetensors"


def body_of(model: str, max_tokens: int = MAX_TOKENS) -> dict[str, object]:
    return {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


def complete(stack: Stack, model: str) -> list[int]:
    with stack.http() as http:
        answer = http.post("/v1/completions", json=body_of(model))
        assert answer.status_code == 200, answer.text
        body = answer.json()
        receipt = http.get(f"/v1/receipts/{answer.headers['x-request-id']}").json()
    assert body["model"] == receipt["model"]
    assert body["model"].endswith(model)  # also of an adapter's name alone
    return body["choices"][0]["token_ids"]


def stream_with_a_kill(stack: Stack, model: str) -> list[int]:
    tokens: list[int] = []
    is_killed = False
    with (
        stack.http() as http,
        http.stream(
            "POST", "/v1/completions", json={**body_of(model, LONG), "stream": True}
        ) as response,
    ):
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                tokens += [token for choice in chunk["choices"] for token in choice["token_ids"]]
            if len(tokens) >= 10 and not is_killed:
                is_killed = True
                for worker in busy_decode_workers(stack.process.pid):
                    worker.kill()
    assert is_killed
    return tokens


def bad_adapters(folder: Path, base: Path) -> dict[str, str]:
    """Write adapters whose numbers make no sense; return what is said of each."""
    make_tiny_adapter(folder / "loud", base, seed=7, lora_alpha=200_000)
    path = make_tiny_adapter(folder / "nan", base, seed=8) / WEIGHTS
    save_file({name: tensor / 0 for name, tensor in load_file(path).items()}, path)
    make_tiny_adapter(folder / "ranks", base, seed=9, rank=2, r=4)
    return {
        "loud": "check lora_alpha and r",
        "nan": "has numbers that are not finite",
        "ranks": "must be [4, 64] for this model and r",
    }


def test_adapters_through_the_stack(tmp_path: Path) -> None:
    base = make_tiny_checkpoint(tmp_path / "model", "llama", max_position_embeddings=2048)
    folder = tmp_path / "adapters"
    for seed, name in enumerate(["one", "two"]):
        make_tiny_adapter(folder / name, base, seed=seed, modules=MODULES)
    oracles = {name: merged(base, folder / name, tmp_path / f"m-{name}") for name in ("one", "two")}
    oracles[""] = GreedyOracle(base)
    assert len({tuple(oracle.greedy(PROMPT, MAX_TOKENS)) for oracle in oracles.values()}) == 3
    environ = {
        "PAGODA_MODEL": str(base),
        "PAGODA_DTYPE": "float32",
        "PAGODA_TOPOLOGY": "prefill=1,decode=2",
        "PAGODA_MAX_ADAPTERS": "2",
        "PAGODA_ADAPTERS": f"one={folder / 'one'}",
        "PAGODA_ADAPTER_DIR": str(folder),
        "PAGODA_GATEWAY_ADMIN_KEY": ADMIN_KEY,
    }
    with running_stack(tmp_path / "home", environ) as stack, stack.http() as http:
        admin = {"Authorization": f"Bearer {ADMIN_KEY}"}

        def ask(path: str, **body: str) -> tuple[int, str]:
            answer = http.post(f"/v1/{path}_lora_adapter", json=body, headers=admin)
            return answer.status_code, answer.text

        unknown = http.post("/v1/completions", json=body_of(f"{stack.model}:two"))
        assert unknown.status_code == 404
        assert http.post("/v1/load_lora_adapter", json={}).status_code == 401  # no client's key
        status, text = ask("load", lora_name="two", lora_path="../model")
        assert (status, "must be below" in text) == (400, True), text
        status, text = ask("load", lora_name="two", lora_path="none")
        assert (status, "cannot be read" in text) == (400, True), text
        for bad, reason in bad_adapters(folder, base).items():
            status, text = ask("load", lora_name=bad, lora_path=bad)
            assert (status, reason in text) == (400, True), text
        assert ask("load", lora_name="two", lora_path="two") == (
            200,
            "Success: LoRA adapter 'two' added successfully.",
        )
        cards = {card["id"]: card["parent"] for card in http.get("/v1/models").json()["data"]}
        full = [f"{stack.model}:{name}" for name in ("one", "two")]
        assert cards == {stack.model: None, **dict.fromkeys(full, stack.model)}

        asked = [stack.model, *full, "one", "two"] * 2
        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(lambda model: complete(stack, model), asked))
        for model, tokens in zip(asked, found, strict=True):
            name = "" if model == stack.model else model.rpartition(":")[2]
            assert tokens == oracles[name].greedy(PROMPT, MAX_TOKENS), model

        tokens = stream_with_a_kill(stack, full[1])
        assert tokens == oracles["two"].greedy(PROMPT, LONG)

        assert ask("unload", lora_name="two")[0] == 200
        assert http.post("/v1/completions", json=body_of(full[1])).status_code == 404
        assert ask("unload", lora_name="two")[0] == 404
        status, text = ask("unload", lora_name="one")
        assert (status, "PAGODA_ADAPTERS names 'one'" in text) == (400, True), text
        assert complete(stack, "one") == oracles["one"].greedy(PROMPT, MAX_TOKENS)
