"""Drives an Engine in tests: builds requests, runs steps, gathers what each sequence produced."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pagoda_engine import (
    Engine,
    EngineConfig,
    FinishReason,
    Hypothesis,
    LoadedModel,
    SamplingParams,
    SequenceRequest,
    StepResult,
    TokenLogprobs,
)

ROOT = bytes(16)


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    tokens = np.asarray(token_ids, dtype="<u4").tobytes()
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()


def make_request(
    sequence_id: str,
    prompt: Sequence[int],
    *,
    block_size: int,
    cache_root: bytes = ROOT,
    sampling: SamplingParams | None = None,
    **fields: Any,
) -> SequenceRequest:
    hashes, parent = [], cache_root
    for start in range(0, len(prompt) - block_size + 1, block_size):
        parent = hash_block(parent, prompt[start : start + block_size])
        hashes.append(parent)
    return SequenceRequest(
        sequence_id=sequence_id,
        prompt_token_ids=tuple(prompt),
        block_hashes=tuple(hashes),
        cache_root=cache_root,
        sampling=sampling or SamplingParams(max_tokens=8, temperature=0.0),
        **fields,
    )


@dataclass
class Collected:
    """One sequence's outputs; `token_ids[i]` has output index first_index + i.

    `prompt_logprobs[i]` is of prompt token i; one that came again came alike.
    """

    first_index: int | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    finish_reason: FinishReason | None = None
    matched_stop_token_id: int | None = None
    error: str = ""
    embedding: bytes = b""
    hypotheses: tuple[Hypothesis, ...] = ()
    compute_ns: int = 0
    num_prefilled_tokens: int = 0


class EngineDriver:
    """An engine whose invariants are recounted after every step, and a record of all results."""

    def __init__(self, model: LoadedModel, config: EngineConfig, **fields: Any) -> None:
        self.config = config
        self.engine = Engine(model, config, hash_block=hash_block, **fields)
        self.results: list[StepResult] = []
        self.sequences: dict[str, Collected] = {}

    def add(self, sequence_id: str, prompt: Sequence[int], **fields: Any) -> None:
        block_size = self.config.block_size
        self.engine.add(make_request(sequence_id, prompt, block_size=block_size, **fields))

    def step(self) -> StepResult:
        result = self.engine.step()
        self.engine.check_invariants()
        self.results.append(result)
        for output in result.outputs:
            collected = self.sequences.setdefault(output.sequence_id, Collected())
            assert collected.finish_reason is None, "an output after the end"
            if collected.first_index is None:
                collected.first_index = output.first_index
            expected = collected.first_index + len(collected.token_ids)
            assert output.first_index == expected, "an index came twice or was skipped"
            collected.token_ids.extend(output.token_ids)
            collected.logprobs.extend(output.logprobs)
            for i, logprobs in enumerate(output.prompt_logprobs, start=output.first_prompt_index):
                known = collected.prompt_logprobs.setdefault(i, logprobs)
                assert known.token_id == logprobs.token_id
            collected.finish_reason = output.finish_reason
            collected.matched_stop_token_id = output.matched_stop_token_id
            collected.error = output.error
            collected.embedding = output.embedding
            collected.hypotheses = output.hypotheses
            if not output.prompt_logprobs:
                assert output.compute_ns >= collected.compute_ns
                collected.compute_ns = output.compute_ns
                collected.num_prefilled_tokens = output.num_prefilled_tokens
        return result

    def check_compute_time(self) -> None:
        """All that was measured is somebody's, or known to be nobody's. Call when idle."""
        stats = [result.stats for result in self.results]
        claimed = sum(collected.compute_ns for collected in self.sequences.values())
        unclaimed = sum(s.unclaimed_ns for s in stats)
        assert claimed + unclaimed == sum(s.compute_ns for s in stats)

    def run(self, max_steps: int = 10_000) -> dict[str, Collected]:
        """Step until there is nothing to do."""
        for _ in range(max_steps):
            if not self.engine.has_work():
                return self.sequences
            self.step()
        raise AssertionError(f"still busy after {max_steps} steps")

    @property
    def num_preempted(self) -> int:
        return sum(result.stats.num_preempted for result in self.results)

    def generate(self, prompts: Sequence[Sequence[int]], **fields: Any) -> list[list[int]]:
        """Run prompts together; returns their output tokens."""
        for i, prompt in enumerate(prompts):
            self.add(str(i), prompt, **fields)
        outputs = self.run()
        return [outputs[str(i)].token_ids for i in range(len(prompts))]
