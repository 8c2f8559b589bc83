"""Makes an engine from options: device, limits, weights, KV pool, graphs.

Tells `StartUp` what goes on. Knows nothing of who listens.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pagoda_engine.adapters.adapter_slots import AdapterSlots, slot_bytes
from pagoda_engine.adapters.adapter_table import AdapterTable
from pagoda_engine.cache.block_pool import OnEvict
from pagoda_engine.cache.layer_groups import LayerGroups, can_be_in_parts
from pagoda_engine.cache.peer_pool import exportable_cache
from pagoda_engine.config import EngineConfig
from pagoda_engine.engine import Engine
from pagoda_engine.errors import CheckpointError, MemoryBudgetError
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.kv.dtype import resolve_kv_dtype
from pagoda_engine.models.model_files import ModelFiles, open_model
from pagoda_engine.models.model_folder import (
    LoadedModel,
    dtype_of,
    load_model,
    resolve_device,
)
from pagoda_engine.models.quantization import resolve_quantization
from pagoda_engine.models.weights.num_bytes import Stored, weight_bytes
from pagoda_engine.scheduler.sequence_blocks import BlockHasher
from pagoda_engine.start_up.device_memory import CudaMemory, DeviceMemory
from pagoda_engine.start_up.host_memory import default_pool_bytes, give_back_freed
from pagoda_engine.start_up.memory_budget import MemoryBudget, format_bytes
from pagoda_engine.start_up.options import EngineOptions
from pagoda_engine.start_up.phases import StartUp
from pagoda_engine.start_up.pool_plan import PoolPlanner
from pagoda_engine.start_up.profile_memory import budget_before_load, measure_budget
from pagoda_engine.start_up.step_limits import (
    CPU_ENOUGH_PROMPT_TOKENS,
    CPU_LIMITS,
    StepLimits,
    cuda_limits,
)
from pagoda_engine.start_up.warm_up import warm_engine, warm_kernels
from pagoda_engine.step.layer_export import OnLayers
from pagoda_formats.control_groups import memory_available, memory_left, num_processors
from pagoda_kernels.native.library import must_be_compiled, native_library
from pagoda_kernels.native.seats import Seat

logger = logging.getLogger(__name__)

UNLIMITED_MODEL_LEN = 2**31 - 1  # the engine takes the smaller of this and the model's own
CUDA_LAYER_GROUPS = 4


def load_engine(
    folder: Path,
    options: EngineOptions,
    *,
    hash_block: BlockHasher,
    on_evict: OnEvict,
    on_layers: OnLayers | None = None,
    shares_pool: bool = False,
    read_buffer_bytes: Callable[[int], int] = lambda block_bytes: 0,
    draft_folder: Path | None = None,
    start_up: StartUp,
) -> Engine:
    """Load a model, allocate its KV blocks, capture graphs and warm up.

    Args:
        folder: of the model, or its GGUF file.
        options: what they leave open is chosen by the device.
        hash_block: see `Engine`.
        on_evict: see `Engine`.
        on_layers: see `Engine`.
        shares_pool: let other processes of this host read the KV pool, if they can.
        read_buffer_bytes: bytes of a block -> those of a further buffer that each lane of copies
            will have, for which room must be left.
        draft_folder: of a draft model with the same tokens, or its GGUF file; None: there is none.
            With one, speculation that is ``auto`` is on.
        start_up: told what goes on.

    Raises:
        EngineError: the folder or a limit cannot be used.
        MemoryBudgetError: the model, or its longest sequence, does not fit.
        Exception: what `start_up` ends the start with.
    """
    if device_name(options.device) == "cpu" and must_be_compiled():
        with start_up.phase("compiling native operators"):
            native_library()
    if not options.num_threads and torch.get_num_threads() > num_processors():
        torch.set_num_threads(num_processors())  # more use a quota up at once, and then all wait
    loading = _Loading(folder, options, read_buffer_bytes, draft_folder, start_up)
    try:
        with start_up.phase("loading weights"):
            model = load_model(folder, loading.config, on_progress=start_up.percent)
            draft = loading.loaded_draft()
            give_back_freed()
            adapters = loading.opened_adapters(model)
        if loading.seat is not None and model.decoder.is_native:
            torch.set_num_threads(1)  # what is left to torch is over before its threads are awake
        config = loading.sized_config(model)
        with start_up.phase("allocating KV"):
            kv_cache = None
            if shares_pool:
                layout = model.kv_layout(config.block_size)
                kv_cache = exportable_cache(layout, config.num_blocks, model.device)
            engine = Engine(
                model,
                config,
                hash_block=hash_block,
                on_evict=on_evict,
                on_layers=on_layers,
                kv_cache=kv_cache,
                shared_processors=loading.seat if model.decoder.is_native else None,
                adapters=adapters,
                draft=draft,
            )
        loading.capture(engine)
        with start_up.phase("warming up"):
            is_finite = warm_engine(engine)
            if not is_finite:
                raise _not_finite(folder, model)
            if draft and draft_folder and engine.drafter and not engine.drafter.warm_up():
                raise _not_finite(draft_folder, draft)
    except torch.OutOfMemoryError as error:
        raise loading.out_of_memory() from error
    return engine


def _not_finite(folder: Path, model: LoadedModel) -> CheckpointError:
    return CheckpointError(
        folder,
        f"with these weights and dtype {model.dtype} the logits of the first steps are not "
        "finite: the files are damaged, or the dtype is too narrow for the model",
    )


class _Loading:
    """What is known before the weights are read, and what is decided from it and measurements."""

    def __init__(
        self,
        folder: Path,
        options: EngineOptions,
        read_buffer_bytes: Callable[[int], int],
        draft_folder: Path | None,
        start_up: StartUp,
    ) -> None:
        """Choose the limits of a step, and refuse a model that cannot fit before it is read."""
        self._options = options
        self.seat = _share_processors(options)
        self._read_buffer_bytes = read_buffer_bytes
        self._start_up = start_up
        self._draft_folder = draft_folder
        model_files = open_model(folder)
        description = model_files.description
        device = resolve_device(device_name(options.device))
        torch_dtype = dtype_of(model_files, options.dtype, device)
        kv_dtype = resolve_kv_dtype(options.kv_cache_dtype, description, torch_dtype)
        model_limit = description.max_position_embeddings
        num_tokens = min(options.max_model_len or model_limit, model_limit)
        layout = description.kv_layout(options.block_size, kv_dtype, max_positions=num_tokens)
        if not can_be_in_parts(device.type):
            layout = layout.in_one_part()
        block_bytes = layout.block_bytes
        adapter_bytes = slot_bytes(description, torch_dtype, options.max_adapter_rank)
        stored = _stored(model_files, options, device)
        num_bytes = weight_bytes(description, torch_dtype, stored)
        taken_bytes = num_bytes + options.max_adapters * adapter_bytes
        logger.info("weights will take %s", format_bytes(num_bytes))
        draft_block_bytes = 0
        if draft_folder is not None:
            draft_files = open_model(draft_folder)
            draft_dtype = dtype_of(draft_files, options.dtype, device)
            stored = _stored(draft_files, options, device)
            taken_bytes += weight_bytes(draft_files.description, draft_dtype, stored)
            draft_kv = resolve_kv_dtype(
                options.kv_cache_dtype, draft_files.description, draft_dtype
            )
            token_bytes = draft_files.description.kv_bytes_per_token(draft_kv)
            draft_block_bytes = token_bytes * options.block_size
        host_bytes = memory_available()
        self._memory: DeviceMemory | None = None
        self._budget: MemoryBudget | None = None
        limits = CPU_LIMITS
        if device.type == "cuda":
            self._memory = CudaMemory(device)
            self._budget = budget_before_load(
                self._memory,
                utilization=options.gpu_memory_utilization,
                weight_bytes=taken_bytes,
            )
            limits = step_limits_of(description, torch_dtype, self._budget.pool_bytes)
        self.config = _config(options, device, limits)
        self._planner = PoolPlanner(
            options,
            block_bytes=block_bytes,
            model_limit=model_limit,
            default_bytes=default_pool_bytes(
                -(-num_tokens // options.block_size) * block_bytes,
                taken_bytes,
                host_bytes,
            ),
            draft_block_bytes=draft_block_bytes,
            longest_table=partial(
                _longest_table,
                layout.groups,
                options.block_size,
                self.config.max_num_batched_tokens,
            ),
        )
        left = memory_left()
        self._planner.plan(self._budget, host_bytes, None if left is None else left - taken_bytes)

    def loaded_draft(self) -> LoadedModel | None:
        """Read the draft model, if there shall be one, and say which."""
        if self._draft_folder is None:
            return None
        draft = load_model(self._draft_folder, self.config)
        size = weight_bytes(draft.description, draft.dtype)
        logger.info(
            "a draft model proposes tokens: %s, %s, %s of weights",
            self._draft_folder,
            draft.description.architecture,
            format_bytes(size),
        )
        return draft

    def opened_adapters(self, model: LoadedModel) -> AdapterTable | None:
        """Take the memory of the slots for adapters, if there shall be any, and say how much."""
        options = self._options
        if not options.max_adapters:
            return None
        slots = AdapterSlots(
            model.decoder, num_slots=options.max_adapters, max_rank=options.max_adapter_rank
        )
        logger.info(
            "room for %d adapters of rank %d at most: %s, %s each",
            slots.num_slots,
            slots.max_rank,
            format_bytes(slots.num_bytes),
            format_bytes(slots.num_bytes // slots.num_slots),
        )
        return AdapterTable(slots)

    def sized_config(self, model: LoadedModel) -> EngineConfig:
        """Run all kinds of steps; return the configuration with the blocks that there is room for.

        Raises:
            MemoryBudgetError: a step does not fit, or the blocks are too few.
        """
        with self._start_up.phase("warming up"):
            warm_kernels(model, self.config, self._start_up.count)
        if self._memory is not None:
            with self._start_up.phase("profiling memory"):
                self._budget = measure_budget(
                    model,
                    self.config,
                    self._memory,
                    utilization=self._options.gpu_memory_utilization,
                    read_buffer_bytes=self._read_buffer_bytes,
                )
        pool = self._planner.plan(self._budget, memory_available(), memory_left())
        logger.info("%s", self._planner.explain(pool, self._budget))
        max_model_len = self._planner.max_model_len(pool)
        if max_model_len < model.max_position_embeddings and not self._options.max_model_len:
            logger.warning(
                "sequences have %d tokens at most, for which the KV pool has room, not the model's "
                "%d",
                max_model_len,
                model.max_position_embeddings,
            )
        config = replace(self.config, num_blocks=pool.num_blocks, max_model_len=max_model_len)
        is_wanted = model.decoder.is_batch_invariant or self._draft_folder is not None
        if self._options.speculation == "auto" and is_wanted:
            config = replace(config, speculation="ngram")
        return config

    def capture(self, engine: Engine) -> None:
        """Capture the graphs, if the device has any, and say what they took."""
        if self._memory is None or self.config.enforce_eager:
            return
        free = self._memory.total_and_free()[1]
        with self._start_up.phase("capturing graphs"):
            engine.capture(self._start_up.count)
        taken = free - self._memory.total_and_free()[1]
        allowed = 0 if self._budget is None else self._budget.graph_bytes
        # Not exact where a neighbour started meanwhile.
        logger.info(
            "graphs took %s, %s were allowed for them", format_bytes(taken), format_bytes(allowed)
        )

    def out_of_memory(self) -> MemoryBudgetError:
        """Return the error for an allocation that failed: of a step, or because others grew."""
        assert self._budget is not None, "torch raises it for devices only"
        limits = StepLimits(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        return MemoryBudgetError(
            f"the memory ran out while {self._start_up.current}",
            self._budget.explain(),
            [
                *self._planner.step_remedies(str(limits)),
                "give its neighbours on the device less: all shares add up to 1 at most",
            ],
        )


def step_limits_of(
    description: DecoderDescription, dtype: torch.dtype, room_bytes: int
) -> StepLimits:
    """Return what a step should compute at most on a GPU with that much room beside the weights."""
    layers = range(description.num_layers)
    q_width = description.num_heads * max(description.heads(i).head_dim for i in layers)
    kv_width = max(description.heads(i).width for i in layers)
    inner = max(map(description.intermediate_size_of, layers))
    if description.experts is not None:
        experts = description.experts
        routed = experts.num_experts_per_tok * experts.intermediate_size
        inner = max(inner, routed + experts.shared_size)
    attention = 2 * q_width + 2 * kv_width
    if description.latent is not None:  # Q as it is and absorbed, what is attended to, and V of it
        latent = description.latent
        each = 2 * latent.head_dim + 2 * latent.width + latent.kv_rank + latent.value_dim
        attention = description.num_heads * each
    widest = max(attention, 3 * inner)  # that, or gate, up and their product
    return cuda_limits(
        room_bytes=room_bytes,
        token_bytes=(2 * description.hidden_size + widest) * dtype.itemsize,
        row_bytes=description.vocab_size * (dtype.itemsize + 3 * torch.float32.itemsize),
    )


def _stored(model_files: ModelFiles, options: EngineOptions, device: torch.device) -> Stored:
    """Return how the weights will come; raises as `load_model`."""
    is_random = options.load_format == "dummy"
    return Stored(
        quantization=resolve_quantization(options.quantization),
        scheme=None if is_random else model_files.scheme,
        tensors={} if is_random or model_files.quantization == "none" else model_files.tensors(),
        device=device,
    )


def _longest_table(
    groups: LayerGroups | None, block_size: int, max_num_batched_tokens: int, num_blocks: int
) -> int:
    """Return the blocks that one sequence can have in a pool of so many."""
    if groups is None:
        return num_blocks
    return groups.longest_table(num_blocks, block_size, max_num_batched_tokens)


def device_name(device: str) -> str:
    """Return what `EngineOptions.device` means on this machine."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _share_processors(options: EngineOptions) -> Seat | None:
    """Divide processors with other workers, where nobody said how many threads there shall be."""
    if not options.processor_table or options.num_threads or device_name(options.device) != "cpu":
        return None
    library = native_library()
    if library is None:
        return None
    return library.share_processors(Path(options.processor_table), num_processors())


def _config(options: EngineOptions, device: torch.device, limits: StepLimits) -> EngineConfig:
    """Return the configuration; the number of blocks is not known yet."""
    max_num_seqs = options.max_num_seqs or limits.max_num_seqs
    return EngineConfig(
        block_size=options.block_size,
        num_blocks=1,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or limits.max_num_batched_tokens,
        enough_prompt_tokens=CPU_ENOUGH_PROMPT_TOKENS if device.type == "cpu" else 0,
        max_model_len=options.max_model_len or UNLIMITED_MODEL_LEN,
        # Whoever feeds the engine counts arrivals; preempted sequences wait beside them.
        max_num_waiting=options.max_num_waiting + max_num_seqs,
        device=str(device),
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        load_format=options.load_format,
        num_threads=options.num_threads,
        enforce_eager=options.enforce_eager,
        graph_batch_sizes=options.graph_batch_sizes or None,
        num_layer_groups=options.num_layer_groups
        or (CUDA_LAYER_GROUPS if device.type == "cuda" else 1),
        speculation="off" if options.speculation == "auto" else options.speculation,
        num_speculative_tokens=options.num_speculative_tokens,
        speculation_output_bytes=options.speculation_output_bytes,
    )
