"""Runs one step's batch through the model: host lists in, logits out.

Knows tensors and the KV cache. Knows nothing of queues, budgets or sampling.
"""

from collections.abc import Sequence as SequenceOf

import torch

from pagoda.engine.cache.kv_cache import KvCache
from pagoda.engine.models.model_folder import LoadedModel
from pagoda.engine.scheduler.scheduler import ScheduledSequence
from pagoda.kernels import plan_attention


class Runner:
    """Flattens a batch into one row per new token and calls the model."""

    def __init__(self, model: LoadedModel, kv_cache: KvCache) -> None:
        self._decoder = model.decoder
        self._device = model.device
        self._kv_cache = kv_cache

    @torch.inference_mode()
    def run(self, batch: SequenceOf[ScheduledSequence]) -> torch.Tensor:
        """Compute the KV of all new tokens.

        Returns:
            ``[R, V]`` logits of the R sequences with ``samples``, in the order of the batch.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        seqlens_q: list[int] = []
        context_lens: list[int] = []
        block_tables: list[list[int]] = []
        for scheduled in batch:
            sequence = scheduled.sequence
            first = sequence.num_computed_tokens
            end = first + scheduled.num_new_tokens
            token_ids.extend(sequence.token_ids[first:end])
            positions.extend(range(first, end))
            seqlens_q.append(scheduled.num_new_tokens)
            context_lens.append(end)
            block_tables.append(sequence.block_ids)
            if scheduled.samples:
                logit_rows.append(len(token_ids) - 1)
        plan = plan_attention(
            seqlens_q=seqlens_q,
            context_lens=context_lens,
            block_tables=block_tables,
            block_size=self._kv_cache.layout.block_size,
            device=self._device,
        )
        needs_all = len(logit_rows) == len(token_ids)
        return self._decoder.forward(
            self._to_device(token_ids),
            self._to_device(positions),
            plan,
            self._kv_cache,
            None if needs_all else self._to_device(logit_rows),
        )

    def _to_device(self, values: list[int]) -> torch.Tensor:
        host = torch.tensor(values, dtype=torch.int64)
        if self._device.type == "cpu":
            return host
        return host.pin_memory().to(self._device, non_blocking=True)
