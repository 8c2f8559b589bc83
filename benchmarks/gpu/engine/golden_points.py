"""Tokens first: the engine against `transformers` on the same device, eager and from graphs.

Tiny random checkpoints of every family in float32, where greedy tokens must be equal whatever the
engine does with a sequence.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.engine_driver import EngineDriver
from support.tiny_checkpoints import make_tiny_checkpoint

from gpu.harness.points import Group, Point, Setting, Subject
from gpu.harness.rows import Row
from pagoda_engine import (
    EngineConfig,
    KvSource,
    LoadedModel,
    SamplingParams,
    StepCost,
    load_model,
)

MAX_TOKENS = 16
BLOCK_SIZE = 16
GRAPH_SIZES = (1, 2, 4)
HEAD_DIMS = {"qwen3": 80, "qwen3_moe": 96, "mistral": 128}
"""Of the tiny checkpoints; 64 for the others. Smaller ones no kernel is made for."""

WEIGHT_SEED = 1
"""With it every expected token leads by more than 1e-3: sums in another order do not turn it."""

SCENARIO_SECONDS = 60.0
"""The first ones compile kernels."""

WHERE_PROPOSALS_PAY = StepCost(8.0, 1.0, 0.35, 0.05, is_seconds=True)

GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)

Tokens = list[list[int]]
Scenario = Callable[["FamilySubject", bool], tuple[Tokens, Tokens]]
"""(subject, eager) -> tokens found, tokens expected."""


def random_tokens(count: int) -> list[int]:
    rng = random.Random(count)
    return [rng.randrange(256) for _ in range(count)]


SHARED = random_tokens(40)
PROMPTS = [
    random_tokens(5),
    SHARED + random_tokens(24),  # a multiple of the block size
    SHARED + random_tokens(9),
    random_tokens(83),
]
SHORT_PROMPTS = [prompt[:20] for prompt in PROMPTS]


class FamilySubject(Subject):
    """A tiny checkpoint as the engine and `transformers` load it, both on the device in float32."""

    def __init__(self, setting: Setting, family: str) -> None:
        from transformers import AutoModelForCausalLM

        self.device = torch.device(setting.device)
        torch.set_float32_matmul_precision("highest")
        with tempfile.TemporaryDirectory() as name:
            folder = make_tiny_checkpoint(
                Path(name), family, seed=WEIGHT_SEED, head_dim=HEAD_DIMS.get(family, 64)
            )
            config = EngineConfig(device=setting.device, dtype="float32", max_model_len=512)
            self.model = load_model(folder, config)
            reference = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                experts_implementation="eager",
            )
        self._reference: Any = reference.eval().to(self.device)
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self.facts: Row = {"family": family, "weight_seed": WEIGHT_SEED}

    def expected(self, prompts: Sequence[Sequence[int]]) -> Tokens:
        """Return what `transformers` generates."""
        return [self._answer(tuple(prompt)) for prompt in prompts]

    def driver(self, is_eager: bool, **fields: Any) -> EngineDriver:
        """Return a fresh engine."""
        values = {"block_size": BLOCK_SIZE, "num_blocks": 128, "max_model_len": 512}
        return make_driver(self.model, is_eager, **{**values, **fields})

    @torch.inference_mode()
    def smallest_lead(self, prompts: Sequence[Sequence[int]]) -> float:
        """Return by how much the likeliest token's logit leads, where it leads least."""
        leads = []
        for prompt, answer in zip(prompts, self.expected(prompts), strict=True):
            ids = torch.tensor([[*prompt, *answer]], device=self.device)
            logits = self._reference(ids).logits[0, len(prompt) - 1 : -1]
            best, second = logits.topk(2).values.unbind(-1)
            leads.append(float((best - second).min()))
        return min(leads)

    @torch.inference_mode()
    def _answer(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._answers:
            ids = torch.tensor([prompt], device=self.device)
            generated = self._reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                min_new_tokens=MAX_TOKENS,
                eos_token_id=None,
                pad_token_id=0,
            )
            self._answers[prompt] = generated[0, len(prompt) :].tolist()
        return self._answers[prompt]


def make_driver(model: LoadedModel, is_eager: bool, **fields: Any) -> EngineDriver:
    """Return an engine with its graphs captured, whose invariants are recounted every step."""
    config = EngineConfig(
        device=model.device.type,
        enforce_eager=is_eager,
        graph_batch_sizes=None if is_eager else GRAPH_SIZES,
        **fields,
    )
    driver = EngineDriver(model, config)
    driver.engine.capture(lambda done, total: None)
    return driver


def batched(subject: FamilySubject, is_eager: bool) -> tuple[Tokens, Tokens]:
    driver = subject.driver(is_eager)
    return driver.generate(PROMPTS, sampling=GREEDY), subject.expected(PROMPTS)


def chunked(subject: FamilySubject, is_eager: bool) -> tuple[Tokens, Tokens]:
    driver = subject.driver(is_eager, max_num_batched_tokens=7)
    return driver.generate(PROMPTS, sampling=GREEDY), subject.expected(PROMPTS)


def prefix_hits(subject: FamilySubject, is_eager: bool) -> tuple[Tokens, Tokens]:
    driver = subject.driver(is_eager)
    driver.add("first", PROMPTS[1], sampling=GREEDY)
    driver.run()
    driver.add("again", PROMPTS[1], sampling=GREEDY)
    driver.add("shared", PROMPTS[2], sampling=GREEDY)
    outputs = driver.run()
    cached = sum(r.num_cached_tokens for result in driver.results for r in result.reserved)
    assert cached > 0, "no prefix was reused"
    found = [outputs[name].token_ids for name in ("first", "again", "shared")]
    return found, subject.expected([PROMPTS[1], PROMPTS[1], PROMPTS[2]])


def preempted(subject: FamilySubject, is_eager: bool) -> tuple[Tokens, Tokens]:
    driver = subject.driver(  # equal beginnings would be shared, and the blocks suffice
        is_eager, num_blocks=10, max_num_batched_tokens=32, enable_prefix_caching=False
    )
    found = driver.generate(SHORT_PROMPTS, sampling=GREEDY)
    assert driver.num_preempted > 0, "nothing was preempted"
    return found, subject.expected(SHORT_PROMPTS)


def imported(subject: FamilySubject, is_eager: bool) -> tuple[Tokens, Tokens]:
    prompt = PROMPTS[2]
    producer = subject.driver(is_eager, max_num_batched_tokens=24)
    consumer = subject.driver(is_eager)
    consumer.add("x", prompt, sampling=GREEDY, kv_source=KvSource.IMPORT)
    reservation = consumer.step().reserved[0]
    producer.add("x", prompt, sampling=GREEDY, prefill_only=True)
    producer.run()
    for computed in (c for result in producer.results for c in result.computed):
        blocks = producer.engine.kv_cache.read_blocks(computed.block_ids)
        first, end = computed.first_block, computed.first_block + len(computed.block_ids)
        consumer.engine.kv_cache.write_blocks(reservation.block_ids[first:end], blocks)
    first_token = producer.sequences["x"].token_ids
    consumer.engine.import_finished(
        "x", num_computed_tokens=len(prompt), first_token_id=first_token[0]
    )
    return [first_token + consumer.run()["x"].token_ids], subject.expected([prompt])


def verified(subject: FamilySubject, is_eager: bool) -> tuple[Tokens, Tokens]:
    """What a tenant was told once is proposed when it asks again."""
    driver = subject.driver(is_eager, speculation="ngram", num_speculative_tokens=3)
    driver.engine.set_step_cost(WHERE_PROPOSALS_PAY)
    names = ("first", "again", "once more")
    for name in names:
        driver.add(name, PROMPTS[1], sampling=GREEDY, tenant=b"same")
        driver.run()
    stats = [result.stats for result in driver.results]
    assert sum(s.num_accepted_tokens for s in stats) > 0, "nothing that was proposed came"
    verifying = {s.is_graph for s in stats if s.num_proposed_tokens}
    assert verifying == {any(s.is_graph for s in stats)}, "other steps than decodes' verify"
    found = [driver.sequences[name].token_ids for name in names]
    return found, subject.expected([PROMPTS[1]] * len(names))


SCENARIOS: dict[str, Scenario] = {
    "batch": batched,
    "chunked prefill": chunked,
    "prefix hits": prefix_hits,
    "preemption": preempted,
    "import": imported,
    "proposals": verified,
}


def compare(scenario: Scenario, is_eager: bool, subject: FamilySubject) -> Row:
    """Run one scenario; ``wrong`` unless all tokens are equal."""
    found, expected = scenario(subject, is_eager)
    num_equal = 0
    for row, expected_row in zip(found, expected, strict=True):
        num_equal += equal_prefix(row, expected_row)
    status = "passed" if found == expected else "wrong"
    return {"status": status, "num_tokens": sum(map(len, expected)), "num_equal": num_equal}


def equal_prefix(some: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading tokens are the same."""
    pairs = zip(some, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(some), len(others)))


def family_group(family: str) -> Group:
    """Every scenario of a family, eager and from graphs."""
    points = tuple(
        Point(f"{name}, {mode}", partial(compare, scenario, mode == "eager"), SCENARIO_SECONDS)
        for mode in ("eager", "graphs")
        for name, scenario in SCENARIOS.items()
    )
    return Group(family_name(family), lambda setting: FamilySubject(setting, family), points)


def family_name(family: str) -> str:
    """Return the name of its group."""
    return f"tiny {family}"
