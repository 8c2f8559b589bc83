"""Predicted times of a plan, from reported load and speeds. Pure arithmetic, in milliseconds.

    TTFT = queue + fetch + miss tokens / prefill speed + transfer
    TPOT = step / (1 + accepted per sequence)
    step = base + (per sequence + per proposed * proposed per sequence) * (sequences + 1)
           + per context token * (context + prompt)
    held up = sequences running * (compute of a prompt there - one step)
    cost = TTFT + expected output tokens * TPOT + held up

Transfers overlap with compute in part; they count in full, so a remote plan's TTFT is an upper
bound.
"""

import math
from typing import NamedTuple

from pagoda_router.workers.snapshot import WorkerSnapshot


class PrefillCost(NamedTuple):
    """What prefilling on one worker takes."""

    num_device_blocks: int
    num_fetch_blocks: int  # leading blocks from the kvstore, device hits included; 0 = no fetch
    num_miss_tokens: int
    queue_ms: float
    fetch_ms: float
    compute_ms: float
    held_up_ms: float = 0.0  # what sequences that run on the same processors wait for it, in sum

    @property
    def total_ms(self) -> float:
        """Time until the KV of the prompt exists."""
        return self.queue_ms + self.fetch_ms + self.compute_ms


class DecodeCost(NamedTuple):
    """What generating on one worker takes."""

    queue_ms: float  # until it has a place and blocks for the sequence
    tpot_ms: float


def prefill_cost(
    worker: WorkerSnapshot,
    *,
    num_prompt_tokens: int,
    num_device_blocks: int,
    num_kvstore_blocks: int,
    fetch_base_ms: float,
) -> PrefillCost:
    """Predict a prefill on `worker`.

    The last prompt token is always computed, so a block that holds it is no hit.

    Args:
        worker: with its pending load.
        num_prompt_tokens: of the sequence.
        num_device_blocks: leading blocks in the worker's own pool.
        num_kvstore_blocks: leading blocks on the device or in the host's kvstore.
        fetch_base_ms: fixed cost of a fetch.
    """
    block_size, speeds = worker.block_size, worker.speeds
    num_usable = (num_prompt_tokens - 1) // block_size
    num_device = min(num_device_blocks, num_usable)
    num_reachable = min(num_kvstore_blocks, num_usable)
    num_to_fetch = num_reachable - num_device
    fetch_ms, num_cached, num_fetch_blocks = 0.0, num_device, 0
    if num_to_fetch > 0:
        predicted_ms = fetch_base_ms + 1000.0 * num_to_fetch * worker.block_bytes / (
            speeds.fetch_bytes_per_second
        )
        saved_ms = 1000.0 * num_to_fetch * block_size / speeds.prefill_tokens_per_second
        if predicted_ms < saved_ms:
            fetch_ms, num_cached, num_fetch_blocks = predicted_ms, num_reachable, num_reachable
    num_miss_tokens = num_prompt_tokens - num_cached * block_size
    return PrefillCost(
        num_device_blocks=num_device,
        num_fetch_blocks=num_fetch_blocks,
        num_miss_tokens=num_miss_tokens,
        queue_ms=1000.0 * worker.num_waiting_tokens / speeds.prefill_tokens_per_second,
        fetch_ms=fetch_ms,
        compute_ms=1000.0 * num_miss_tokens / speeds.prefill_tokens_per_second,
    )


def decode_cost(
    worker: WorkerSnapshot, *, num_prompt_tokens: int, num_output_tokens: int
) -> DecodeCost:
    """Predict generating on `worker`; `num_output_tokens` is what a sequence is expected to give.

    A full batch frees one place for every `num_output_tokens / num_running` steps.
    """
    num_tokens = num_prompt_tokens + num_output_tokens
    num_ahead = max(
        _num_ahead_for_a_place(worker), _num_ahead_for_blocks(worker, num_tokens=num_tokens)
    )
    queue_ms = 0.0
    if num_ahead:
        token_ms = token_time_ms(worker, num_sequences=worker.num_running, num_new_tokens=0)
        queue_ms = num_ahead * num_output_tokens * token_ms / max(1, worker.num_running)
    num_sequences = worker.num_sequences + 1
    if worker.max_num_seqs:
        num_sequences = min(num_sequences, worker.max_num_seqs)
    tpot_ms = token_time_ms(worker, num_sequences=num_sequences, num_new_tokens=num_prompt_tokens)
    return DecodeCost(queue_ms, tpot_ms)


def held_up_ms(worker: WorkerSnapshot, compute_ms: float) -> float:
    """Predict how long a worker's sequences wait, in sum, for a prompt on its processors.

    As long as one more step it is theirs to bear: chunks of prompts take that of a step anyway.
    """
    step_ms = _step_ms(worker, num_sequences=worker.num_running, num_new_tokens=0)
    return worker.num_running * max(0.0, compute_ms - step_ms)


def token_time_ms(worker: WorkerSnapshot, *, num_sequences: int, num_new_tokens: int) -> float:
    """Return the time from token to token of a sequence, with `num_new_tokens` more context.

    That of a decode step, by the tokens that it gives each sequence: more than one where proposed
    ones are accepted, as often as they were lately.
    """
    step_ms = _step_ms(worker, num_sequences=num_sequences, num_new_tokens=num_new_tokens)
    return step_ms / (1.0 + worker.speeds.accepted_per_decode)


def transfer_ms(
    producer: WorkerSnapshot,
    consumer: WorkerSnapshot,
    *,
    num_prompt_tokens: int,
    num_consumer_blocks: int,
) -> float:
    """Predict moving the prompt's KV, less the leading blocks that the consumer holds."""
    num_blocks = consumer.blocks_for(num_prompt_tokens, num_leading_blocks=num_consumer_blocks)
    num_bytes = num_blocks * consumer.block_bytes
    return 1000.0 * num_bytes / producer.speeds.transfer_bytes_per_second


def _step_ms(worker: WorkerSnapshot, *, num_sequences: int, num_new_tokens: int) -> float:
    speeds = worker.speeds
    per_sequence_ms = (
        speeds.step_per_sequence_ms + speeds.step_per_proposed_token_ms * speeds.proposed_per_decode
    )
    return (
        speeds.step_base_ms
        + per_sequence_ms * num_sequences
        + speeds.step_per_context_token_ms * (worker.num_context_tokens + num_new_tokens)
    )


def _num_ahead_for_a_place(worker: WorkerSnapshot) -> int:
    """Sequences that must finish before a new one has a place in the batch."""
    if not worker.max_num_seqs:
        return 0
    return max(0, worker.num_sequences + 1 - worker.max_num_seqs)


def _num_ahead_for_blocks(worker: WorkerSnapshot, *, num_tokens: int) -> int:
    """Sequences that must finish before enough blocks are free."""
    num_missing = worker.blocks_for(num_tokens) - worker.num_free_blocks
    if num_missing <= 0 or not worker.num_running:
        return 0
    num_per_sequence = max(1.0, (worker.num_blocks - worker.num_free_blocks) / worker.num_running)
    return min(worker.num_running, math.ceil(num_missing / num_per_sequence))
