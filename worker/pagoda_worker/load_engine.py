"""Makes an engine from settings: device, limits, weights, KV pool, graphs, identity."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pagoda.rpc.v1 import status_pb2
from pagoda_engine import BlockHasher, Engine, EngineConfig, LoadedModel, load_model
from pagoda_engine.cache.block_pool import OnEvict
from pagoda_engine.cache.peer_pool import exportable_cache
from pagoda_engine.engine import kv_layout
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.families import read_description
from pagoda_engine.models.model_folder import resolve_device, resolve_dtype
from pagoda_engine.step.layer_export import OnLayers
from pagoda_runtime.block_hash import kv_identity
from pagoda_worker.device_memory import CudaMemory, DeviceMemory
from pagoda_worker.errors import MemoryBudgetError
from pagoda_worker.memory_budget import MemoryBudget, format_bytes
from pagoda_worker.pool_plan import PoolPlanner
from pagoda_worker.profile_memory import budget_before_load, measure_budget
from pagoda_worker.settings import WorkerSettings
from pagoda_worker.start_up import StartUp
from pagoda_worker.step_limits import CPU_LIMITS, StepLimits, cuda_limits
from pagoda_worker.warm_up import warm_engine, warm_kernels

logger = logging.getLogger(__name__)

UNLIMITED_MODEL_LEN = 2**31 - 1  # the engine takes the smaller of this and the model's own
CUDA_LAYER_GROUPS = 4


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine and what others must know of its model."""

    engine: Engine
    model: LoadedModel
    kv_identity: bytes
    card: status_pb2.ModelCard


def load_engine(
    folder: Path,
    settings: WorkerSettings,
    *,
    model_name: str,
    dtype: str,
    hash_block: BlockHasher,
    on_evict: OnEvict,
    on_layers: OnLayers | None = None,
    shares_pool: bool = False,
    start_up: StartUp,
) -> LoadedEngine:
    """Load a model folder, allocate its KV blocks, capture graphs and warm up.

    Args:
        folder: of the model.
        settings: limits; what they leave open is chosen by the device.
        model_name: for the card.
        dtype: of weights and KV, or ``auto``.
        hash_block: see `Engine`.
        on_evict: see `Engine`.
        on_layers: see `Engine`.
        shares_pool: let other processes of this host read the KV pool, if they can.
        start_up: told what goes on.

    Raises:
        EngineError: the folder or a limit cannot be used.
        MemoryBudgetError: the model, or its longest sequence, does not fit.
        StoppedError: `start_up` was told to stop.
    """
    loading = _Loading(folder, settings, dtype, start_up)
    try:
        with start_up.phase("loading weights"):
            model = load_model(folder, loading.config, on_progress=start_up.percent)
        config = loading.sized_config(model)
        with start_up.phase("allocating KV"):
            kv_cache = None
            if shares_pool:
                layout = kv_layout(model, config)
                kv_cache = exportable_cache(layout, config.num_blocks, model.device)
            engine = Engine(
                model,
                config,
                hash_block=hash_block,
                on_evict=on_evict,
                on_layers=on_layers,
                kv_cache=kv_cache,
            )
        loading.capture(engine)
        with start_up.phase("warming up"):
            warm_engine(engine)
    except torch.OutOfMemoryError as error:
        raise loading.out_of_memory() from error
    identity = kv_identity(fingerprint=model.fingerprint, layout=engine.layout)
    card = status_pb2.ModelCard(
        name=model_name,
        kv_identity=identity,
        block_size=settings.block_size,
        block_bytes=engine.kv_cache.block_bytes,
        max_model_len=engine.max_model_len,
        vocab_size=model.vocab_size,
        dtype=str(model.dtype).removeprefix("torch."),
    )
    return LoadedEngine(engine, model, identity, card)


class _Loading:
    """What is known before the weights are read, and what is decided from it and measurements."""

    def __init__(
        self, folder: Path, settings: WorkerSettings, dtype: str, start_up: StartUp
    ) -> None:
        """Choose the limits of a step, and refuse a model that cannot fit before it is read."""
        self._settings = settings
        self._start_up = start_up
        description = read_description(folder / "config.json")
        device = resolve_device(_device_name(settings))
        torch_dtype = resolve_dtype(dtype, description.dtype, device)
        self._planner = PoolPlanner(
            settings,
            block_bytes=description.kv_bytes_per_token(torch_dtype) * settings.block_size,
            model_limit=description.max_position_embeddings,
        )
        self._memory: DeviceMemory | None = None
        self._budget: MemoryBudget | None = None
        limits = CPU_LIMITS
        if device.type == "cuda":
            self._memory = CudaMemory(device)
            self._budget = budget_before_load(
                self._memory,
                utilization=settings.gpu_memory_utilization,
                weight_bytes=description.weight_bytes(torch_dtype),
            )
            limits = step_limits_of(description, torch_dtype, self._budget.pool_bytes)
        self._planner.plan(self._budget)
        self.config = _config(settings, dtype, device, limits)

    def sized_config(self, model: LoadedModel) -> EngineConfig:
        """Run all kinds of steps; return the configuration with the blocks that there is room for.

        Raises:
            MemoryBudgetError: a step does not fit, or the blocks are too few.
        """
        with self._start_up.phase("warming up"):
            warm_kernels(model, self.config, self._start_up.count)
        if self._memory is not None:
            with self._start_up.phase("profiling memory"):
                share = self._settings.gpu_memory_utilization
                self._budget = measure_budget(model, self.config, self._memory, utilization=share)
        pool = self._planner.plan(self._budget)
        logger.info("%s", self._planner.explain(pool, self._budget))
        max_model_len = self._planner.max_model_len(pool)
        if max_model_len < model.max_position_embeddings and not self._settings.max_model_len:
            logger.warning(
                "sequences have %d tokens at most, for which the KV pool has room, not the model's "
                "%d",
                max_model_len,
                model.max_position_embeddings,
            )
        return replace(self.config, num_blocks=pool.num_blocks, max_model_len=max_model_len)

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
    q_width = description.num_heads * description.head_dim
    kv_width = description.num_kv_heads * description.head_dim
    inner = description.intermediate_size
    if description.experts is not None:
        experts = description.experts
        inner = max(inner, experts.num_experts_per_tok * experts.intermediate_size)
    widest = max(2 * q_width + 2 * kv_width, 3 * inner)  # attention; gate, up and their product
    return cuda_limits(
        room_bytes=room_bytes,
        token_bytes=(2 * description.hidden_size + widest) * dtype.itemsize,
        row_bytes=description.vocab_size * (dtype.itemsize + 3 * torch.float32.itemsize),
    )


def _device_name(settings: WorkerSettings) -> str:
    if settings.device != "auto":
        return settings.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _config(
    settings: WorkerSettings, dtype: str, device: torch.device, limits: StepLimits
) -> EngineConfig:
    """Return the configuration; the number of blocks is not known yet."""
    max_num_seqs = settings.max_num_seqs or limits.max_num_seqs
    return EngineConfig(
        block_size=settings.block_size,
        num_blocks=1,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or limits.max_num_batched_tokens,
        max_model_len=settings.max_model_len or UNLIMITED_MODEL_LEN,
        # The worker counts arrivals itself; preempted sequences wait beside them.
        max_num_waiting=settings.max_num_waiting + max_num_seqs,
        device=str(device),
        dtype=dtype,
        num_threads=settings.num_threads,
        enforce_eager=settings.enforce_eager,
        graph_batch_sizes=settings.graph_batch_sizes or None,
        num_layer_groups=settings.num_layer_groups
        or (CUDA_LAYER_GROUPS if device.type == "cuda" else 1),
    )
