"""Measures what an engine needs of a device beside KV: weights, the largest step, graphs, the rest.

Runs the largest step that the limits allow and reads the allocator. Knows no settings.
"""

from collections.abc import Callable
from dataclasses import replace

from pagoda_engine.cache.copy_lanes import DEVICE_CHUNK_BYTES, NUM_LANES
from pagoda_engine.config import EngineConfig
from pagoda_engine.models.model_folder import LoadedModel
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.start_up.device_memory import DeviceMemory
from pagoda_engine.start_up.memory_budget import MemoryBudget
from pagoda_engine.start_up.scratch_engine import NUM_OUTPUT_TOKENS, ScratchEngine
from pagoda_engine.start_up.step_limits import StepLimits
from pagoda_engine.step.decode_graphs import chosen_sizes

GRAPH_BYTES = 16 * 2**20
"""Of one captured graph: nodes and their arguments. All graphs share one set of activations."""

MAX_OTHER_BYTES = 2**30
"""Most that a process takes of a GPU outside torch: the context and the code of libraries.

The driver tells what all processes together have taken, so with neighbours on the GPU this bound
stands in for the measurement.
"""

MOST_MEMORY = SamplingParams(
    max_tokens=1,
    top_p=0.9,
    top_n_sigma=1.0,
    repetition_penalty=1.1,
    logit_bias={0: 1.0},
    num_logprobs=1,
)
"""Every change of logits that takes memory of its own."""


def budget_before_load(
    memory: DeviceMemory, *, utilization: float, weight_bytes: int
) -> MemoryBudget:
    """Return the budget as far as it is known before the weights are on the device."""
    total, free = memory.total_and_free()
    return MemoryBudget(
        device=memory.name,
        total_bytes=total,
        free_bytes=free - weight_bytes,
        utilization=utilization,
        weight_bytes=weight_bytes,
    )


def measure_budget(
    model: LoadedModel,
    config: EngineConfig,
    memory: DeviceMemory,
    *,
    utilization: float,
    read_buffer_bytes: Callable[[int], int] = lambda block_bytes: 0,
) -> MemoryBudget:
    """Run the largest step and return what it left for KV.

    Args:
        model: all that this process has on the device.
        config: of the engine to come; ``num_blocks`` does not matter.
        memory: of the model's device.
        utilization: share of the device, in (0, 1].
        read_buffer_bytes: see `load_engine`.

    Raises:
        torch.OutOfMemoryError: the step does not fit.
    """
    limits = StepLimits(config.max_num_seqs, config.max_num_batched_tokens)
    block_bytes = model.kv_layout(config.block_size).block_bytes
    memory.trim()
    before = memory.reserved()
    activation_bytes, decode_bytes = _measure_steps(model, config, memory, limits)
    total, free = memory.total_and_free()
    own = memory.reserved()  # the weights, and what libraries keep for ever after their first use
    # That they keep for each thread and stream (cuBLAS: 32 MiB on Hopper). The engine's stream has
    # two threads, one that starts it and one that steps; what the largest step took is of one.
    kept_bytes = max(0, own - before)
    return MemoryBudget(
        device=memory.name,
        total_bytes=total,
        free_bytes=free,
        utilization=utilization,
        weight_bytes=own,
        other_bytes=min(max(0, total - free - own), MAX_OTHER_BYTES),
        activation_bytes=activation_bytes + kept_bytes,
        graph_bytes=_graph_bytes(config, decode_bytes),
        copy_bytes=NUM_LANES
        * (max(DEVICE_CHUNK_BYTES, block_bytes) + read_buffer_bytes(block_bytes)),
        largest_step=str(limits),
    )


def _measure_steps(
    model: LoadedModel, config: EngineConfig, memory: DeviceMemory, limits: StepLimits
) -> tuple[int, int]:
    """Return the bytes that the largest step and the largest decode take beside weights and KV."""
    num_seqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    longest = min(config.max_model_len, model.decoder.max_positions) - NUM_OUTPUT_TOKENS
    num_prompt_tokens = max(1, min(limits.max_num_batched_tokens // num_seqs, longest))
    scratch = ScratchEngine(
        model,
        config,
        num_tokens=num_seqs * (num_prompt_tokens + NUM_OUTPUT_TOKENS),
        num_seqs=num_seqs,
    )
    most = MOST_MEMORY
    if model.decoder.takes_last_rows:  # all layers have all rows only of a prompt that is scored
        most = replace(MOST_MEMORY, num_prompt_logprobs=0)
    for seed in range(num_seqs):
        scratch.add(num_prompt_tokens, replace(most, seed=seed))
    largest = _growth(memory, scratch.step)  # all prompts
    decode = _growth(memory, scratch.step)  # one token of each
    scratch.finish()
    del scratch
    memory.trim()
    return largest, decode


def _growth(memory: DeviceMemory, work: Callable[[], None]) -> int:
    memory.trim()
    before = memory.reserved()
    work()
    return max(0, memory.peak() - before)


def _graph_bytes(config: EngineConfig, decode_bytes: int) -> int:
    if config.enforce_eager:
        return 0
    sizes = config.graph_batch_sizes or chosen_sizes(config.max_num_seqs)
    return decode_bytes + len(sizes) * GRAPH_BYTES
