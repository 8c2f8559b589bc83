"""Greedy tokens of the whole stack equal transformers', in float32 on the CPU.

In both topologies, with chunked prefill, prefix hits, shared blocks and preemption.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.greedy_oracle import GreedyOracle
from support.stack import Stack, running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = 20261120
MAX_TOKENS = 24


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    return [random.Random(seed).randrange(256) for _ in range(num_tokens)]


def complete(stack: Stack, prompt: list[int], max_tokens: int = MAX_TOKENS, **options):
    """Token ids of one completion, and the whole answer."""
    with stack.http() as http:
        body = {
            "model": stack.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **options,
        }
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        receipt = http.get(f"/v1/receipts/{answer.headers['x-request-id']}").json()
    return answer.json()["choices"][0]["token_ids"], receipt


def complete_all(stack: Stack, prompts: list[list[int]], **options) -> list[list[int]]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return [tokens for tokens, _ in pool.map(lambda p: complete(stack, p, **options), prompts)]


# Every family's tokens of one engine are in tests/golden, those of every kind of layers that came
# through a prefill and a decode worker in tests/integration/worker/test_families.py. What processes
# add is the same for all, but where windows let a sequence give back its blocks.
TOPOLOGIES = [("llama", "aggregated"), ("llama", "disaggregated"), ("mistral", "disaggregated")]


@pytest.fixture(scope="module", params=TOPOLOGIES, ids="-".join)
def family_and_topology(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(
    family_and_topology: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    family, _ = family_and_topology
    return make_tiny_checkpoint(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> GreedyOracle:
    return GreedyOracle(checkpoint)


@pytest.fixture(scope="module")
def stack(
    checkpoint: Path,
    family_and_topology: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    environ = {
        "PAGODA_MODEL": str(checkpoint),
        "PAGODA_DTYPE": "float32",
        "PAGODA_TOPOLOGY": family_and_topology[1],
        # Long prompts take several chunks; a few sequences fill the pool, so some are preempted.
        "PAGODA_PREFILL_MAX_NUM_BATCHED_TOKENS": "40",
        "PAGODA_DECODE_MAX_NUM_BATCHED_TOKENS": "40",
        "PAGODA_DECODE_NUM_BLOCKS": "40",
        "PAGODA_PREFILL_NUM_BLOCKS": "64",
    }
    with running_stack(tmp_path_factory.mktemp("home"), environ) as stack:
        yield stack
        # Else the tests would show that decode workers can prefill, not that KV arrives.
        assert stack.metric("decode", "pagoda_local_prefill_fallbacks_total") == 0
        assert stack.metric("decode", "pagoda_kv_bad_digests_total") == 0


def test_prompts_of_many_lengths(stack: Stack, oracle: GreedyOracle) -> None:
    prompts = [prompt_of(length, SEED + length) for length in (1, 15, 16, 17, 33, 130)]
    outputs = complete_all(stack, prompts)
    assert outputs == oracle.all_greedy(prompts, MAX_TOKENS, outputs)


def test_prefix_hit_changes_no_token(stack: Stack, oracle: GreedyOracle) -> None:
    prompt = prompt_of(100, SEED)
    first, _ = complete(stack, prompt)
    again, receipt = complete(stack, prompt)
    assert first == again == oracle.greedy(prompt, MAX_TOKENS, guess=first)
    assert receipt["cached_tokens"]["device"] >= 16


def test_two_sequences_share_blocks(stack: Stack, oracle: GreedyOracle) -> None:
    shared = prompt_of(64, SEED + 1)
    prompts = [shared + prompt_of(9, 1), shared + prompt_of(9, 2), shared]
    outputs = complete_all(stack, prompts)
    assert outputs == oracle.all_greedy(prompts, MAX_TOKENS, outputs)


def test_preempted_sequences_go_on_with_the_same_tokens(
    stack: Stack, oracle: GreedyOracle, family_and_topology: tuple[str, str]
) -> None:
    prompts = [prompt_of(48, SEED + 100 + i) for i in range(8)]
    before = stack.metric("decode", "pagoda_preemptions_total")
    for _ in range(5):  # on a busy machine they may come one after the other
        # Three of them fill the pool.
        outputs = complete_all(stack, prompts, max_tokens=240)
        assert outputs == oracle.all_greedy(prompts, 240, outputs)
        num_preempted = stack.metric("decode", "pagoda_preemptions_total") - before
        if family_and_topology[0] == "mistral":  # all layers have a window: nobody holds much
            assert not num_preempted
            return
        if num_preempted:
            return
    pytest.fail("nobody was preempted")


def test_seeded_samples_do_not_depend_on_the_batch(stack: Stack) -> None:
    options = {"temperature": 1.0, "seed": 5, "top_p": 0.9}
    prompts = [prompt_of(20, SEED + i) for i in range(4)]
    alone = [complete(stack, prompt, **options)[0] for prompt in prompts]
    assert complete_all(stack, prompts, **options) == alone
