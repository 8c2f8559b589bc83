"""A seed gives the same tokens whichever processes computed them."""

from pathlib import Path

import pytest
from support.stack import running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


REPETITIONS = {
    "dry_multiplier": 0.8, "dry_allowed_length": 1, "lz_penalty": 0.1, "xtc_probability": 0.5,
    "xtc_threshold": 0.01, "typical_p": 0.9, "top_n_sigma": 2, "logit_bias": {"5": 3, "6": 3},
}  # fmt: skip


def sampled(home: Path, checkpoint: Path, topology: str) -> list[list[int]]:
    environ = {
        "PAGODA_MODEL": str(checkpoint),
        "PAGODA_DTYPE": "float32",
        "PAGODA_TOPOLOGY": topology,
    }
    body = {
        "prompt": [[1, 2, 3, 4], list(range(60))],
        "n": 2,
        "max_tokens": 40,
        "seed": 11,
        "temperature": 0.9,
        "top_k": 50,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    with running_stack(home, environ) as stack, stack.http() as http:
        choices = []
        for more in ({}, REPETITIONS):
            answer = http.post("/v1/completions", json={"model": stack.model, **body, **more})
            assert answer.status_code == 200, answer.text
            choices += answer.json()["choices"]
        return [choice["token_ids"] for choice in choices]


def test_seeded_tokens_are_equal_in_every_topology(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "llama")
    topologies = ("aggregated", "prefill=1,decode=2")
    one, several = [sampled(tmp_path / f"home{i}", checkpoint, t) for i, t in enumerate(topologies)]
    assert len({tuple(tokens) for tokens in one}) == 8
    assert several == one
