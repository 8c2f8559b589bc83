"""One shape with random weights on the device, and one engine at a time over it."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from support.engine_driver import hash_block

from gpu.harness.ceilings import Ceilings
from gpu.harness.points import NotAvailableError, Setting, Subject
from gpu.harness.rows import Row
from gpu.model.imported_sequences import (
    BLOCK_SIZE,
    fill_random,
    import_request,
    random_tokens,
    start_imported,
)
from gpu.model.random_model import RandomWeights
from gpu.model.roofline import Roofline
from gpu.model.shared_weights import SharedWeights, transformers_model
from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.weights.num_bytes import weight_bytes

Mode = Literal["graphs", "eager", "chunked"]
"""Prompts in one step and decodes from graphs; no graphs; no graphs and prompts in chunks."""

POOL_SHARE = 0.7
"""Of what is free beside the weights: the rest is for prefills and for `transformers`' own KV."""


@dataclass(frozen=True)
class Sizes:
    """What is measured of a shape.

    Attributes:
        dtype: of weights and KV.
        batches: numbers of sequences that decode together.
        contexts: tokens before the first decode.
        prompt_lengths: of prefills.
        chunk: tokens of one step, where a prefill is cut.
        num_warm_steps: decodes before the first that counts.
        num_steps: decodes that count.
    """

    dtype: torch.dtype
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompt_lengths: tuple[int, ...]
    chunk: int
    num_warm_steps: int
    num_steps: int

    @property
    def max_model_len(self) -> int:
        """Longest sequence of any point."""
        return max(*self.contexts, *self.prompt_lengths) + 2 * self.num_output_tokens

    @property
    def num_output_tokens(self) -> int:
        """Tokens that a sequence may make, so that none ends while it is measured."""
        return self.num_warm_steps + self.num_steps + 8


class ModelSubject(Subject):
    """Weights, and the engine that is running over them, if any.

    Attributes:
        model: the weights as the engine has them.
        weights: views of them by the names of `transformers`.
        capture_facts: of the latest engine with graphs.
    """

    def __init__(self, setting: Setting, shape: DecoderDescription, sizes: Sizes) -> None:
        self.setting = setting
        self.sizes = sizes
        self.shape = shape
        self.device = torch.device(setting.device)
        self.roofline = Roofline(self.shape, sizes.dtype)
        self.model, self.weights = _shared_model(self)
        self._engine: Engine | None = None
        self._mode: Mode = "graphs"
        self._reference: Any = None
        self.capture_facts: Row = {}
        self.facts: Row = {
            "weight_bytes": weight_bytes(self.shape, sizes.dtype),
            "device_bytes": self.used_bytes(),
        }

    def reset(self) -> None:
        """Drop the engine; the next point makes a new one."""
        self._engine = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def engine(self, mode: Mode = "graphs") -> Engine:
        """Return an engine that runs that way; there is one at a time."""
        if self._engine is None or self._mode != mode:
            self.reset()
            self._mode = mode
            self._engine = self._make_engine(mode)
        return self._engine

    @property
    def ceilings(self) -> Ceilings:
        """Of the device, measured earlier in this run."""
        return self.setting.ceilings

    @property
    def reference(self) -> Any:
        """The model of `transformers` over the same weights."""
        if self._reference is None:
            self._reference = transformers_model(self.shape, self.weights)
        return self._reference

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def used_bytes(self) -> int:
        """Device memory that is not free, graphs included; 0 on CPU."""
        if self.device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def prompt(self, length: int, number: int) -> list[int]:
        """Return random tokens, others for every number."""
        seed = self.setting.seed * 10_007 + number
        return random_tokens(length, self.shape.vocab_size, seed)

    def _make_engine(self, mode: Mode) -> Engine:
        sizes = self.sizes
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=self._num_blocks(),
            max_num_seqs=max(sizes.batches),
            max_num_batched_tokens=sizes.chunk if mode == "chunked" else sizes.max_model_len,
            max_model_len=sizes.max_model_len,
            max_num_waiting=max(sizes.batches),
            device=self.device.type,
            enforce_eager=mode != "graphs",
            graph_batch_sizes=sizes.batches if mode == "graphs" else None,
        )
        engine = Engine(self.model, config, hash_block=hash_block)
        fill_random(engine.kv_cache.tensor, self.setting.seed)
        before, started = self.used_bytes(), time.perf_counter()
        engine.capture(lambda done, total: None)
        self.synchronize()
        if mode == "graphs":
            self.capture_facts = {
                "seconds": time.perf_counter() - started,
                "graph_bytes": self.used_bytes() - before,
                "num_graphs": len(sizes.batches),
                "pool_bytes": engine.kv_cache.tensor.nbytes,
                "num_blocks": config.num_blocks,
            }
        return engine

    def _num_blocks(self) -> int:
        """As many as the largest point needs, or as fit."""
        sizes = self.sizes
        longest = max(sizes.contexts) + sizes.num_output_tokens
        wanted = blocks_for(max(sizes.batches), longest)
        if self.device.type != "cuda":
            return wanted
        free, _ = torch.cuda.mem_get_info()
        block_bytes = self.shape.kv_bytes_per_token(sizes.dtype) * BLOCK_SIZE
        return min(wanted, int(POOL_SHARE * free) // block_bytes)


def blocks_for(batch: int, length: int) -> int:
    """Blocks of so many sequences, and the spare ones without which the last is not admitted."""
    return int(1.02 * batch * (-(-length // BLOCK_SIZE) + 1)) + 1


@contextmanager
def decoding(
    subject: ModelSubject, batch: int, context: int, sampling: Callable[[int], SamplingParams]
) -> Iterator[Engine]:
    """Give an engine with `batch` sequences that have imported `context` tokens of random KV.

    Args:
        subject: whose engine it is.
        batch: sequences.
        context: tokens of each, the first output token included.
        sampling: number of a sequence -> how its tokens are chosen.

    Raises:
        NotAvailableError: the pool is too small.
    """
    engine = subject.engine()
    num_blocks = blocks_for(batch, context + subject.sizes.num_output_tokens)
    block_bytes = engine.kv_cache.block_bytes
    if num_blocks > engine.config.num_blocks:
        raise NotAvailableError(
            f"{batch} sequences of {context} tokens need {num_blocks * block_bytes / 1e9:.0f} GB "
            f"of KV, the pool has {engine.config.num_blocks * block_bytes / 1e9:.0f} GB"
        )
    requests = [
        import_request(str(i), subject.prompt(context - 1, i), sampling(i)) for i in range(batch)
    ]
    start_imported(engine, requests)
    try:
        yield engine
    finally:
        for number in range(batch):
            engine.abort(str(number))
        while engine.has_work():
            engine.step()


def _shared_model(subject: ModelSubject) -> tuple[LoadedModel, dict[str, torch.Tensor]]:
    sizes, shape = subject.sizes, subject.shape
    weights = SharedWeights(RandomWeights(sizes.dtype, subject.device, subject.setting.seed))
    decoder = build_decoder(
        shape, weights, max_positions=sizes.max_model_len, device=subject.device
    )
    model = LoadedModel(
        description=shape,
        decoder=decoder,
        device=subject.device,
        dtype=sizes.dtype,
        eos_token_ids=frozenset(),
        fingerprint=bytes(16),
    )
    return model, weights.tensors
