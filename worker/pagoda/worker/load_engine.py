"""Makes an engine from settings: device, pool size, model, identity. Reads the weights."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from pagoda.engine import (
    BlockHasher,
    Engine,
    EngineConfig,
    InvalidConfigError,
    KvLayout,
    LoadedModel,
    SamplingParams,
    SequenceRequest,
    load_model,
)
from pagoda.engine.cache.block_pool import OnEvict
from pagoda.rpc.v1 import status_pb2
from pagoda.runtime.block_hash import kv_identity
from pagoda.worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

DEFAULT_CPU_BYTES = 256 * 2**20
UNLIMITED_MODEL_LEN = 2**31 - 1  # the engine takes the smaller of this and the model's own


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
) -> LoadedEngine:
    """Load a model folder and allocate its KV blocks.

    Raises:
        EngineError: the folder or a limit cannot be used, or no KV block fits.
    """
    model = load_model(folder, _config(settings, dtype, num_blocks=1))
    num_blocks = settings.num_blocks or _num_blocks(settings, model)
    engine = Engine(
        model, _config(settings, dtype, num_blocks), hash_block=hash_block, on_evict=on_evict
    )
    identity = kv_identity(fingerprint=model.fingerprint, layout=engine.layout)
    logger.info(
        "%s: %d KV blocks of %d bytes, %s on %s, sequences up to %d tokens",
        model_name,
        num_blocks,
        engine.kv_cache.block_bytes,
        engine.layout,
        model.device,
        engine.max_model_len,
    )
    card = status_pb2.ModelCard(
        name=model_name,
        kv_identity=identity,
        block_size=settings.block_size,
        block_bytes=engine.kv_cache.block_bytes,
        max_model_len=engine.max_model_len,
        vocab_size=model.vocab_size,
        dtype=str(model.dtype).removeprefix("torch."),
    )
    warm_up(engine, settings.block_size)
    return LoadedEngine(engine, model, identity, card)


def warm_up(engine: Engine, block_size: int) -> None:
    """Compute a prompt and a token, so that no user waits for what libraries do at first use.

    Too few tokens to fill a block: nothing becomes reusable, so nothing of it is ever stored.
    """
    request = SequenceRequest(
        sequence_id="warm-up",
        prompt_token_ids=(0,) * max(1, block_size - 2),
        block_hashes=(),
        cache_root=bytes(16),
        sampling=SamplingParams(max_tokens=2, ignore_eos=True),
    )
    if len(request.prompt_token_ids) + 2 > min(engine.max_model_len, block_size):
        return
    engine.add(request)
    while engine.has_work():
        engine.step()


def _config(settings: WorkerSettings, dtype: str, num_blocks: int) -> EngineConfig:
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return EngineConfig(
        block_size=settings.block_size,
        num_blocks=num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len or UNLIMITED_MODEL_LEN,
        # The worker counts arrivals itself; preempted sequences wait beside them.
        max_num_waiting=settings.max_num_waiting + settings.max_num_seqs,
        device=device,
        dtype=dtype,
        num_threads=settings.num_threads,
    )


def _num_blocks(settings: WorkerSettings, model: LoadedModel) -> int:
    layout = KvLayout(
        num_layers=model.description.num_layers,
        block_size=settings.block_size,
        num_kv_heads=model.description.num_kv_heads,
        head_dim=model.description.head_dim,
        dtype=model.dtype,
    )
    num_bytes = settings.kv_cache_bytes or _default_bytes(settings, model)
    if num_bytes < layout.block_bytes:
        raise InvalidConfigError(
            "size of the KV pool in bytes",
            num_bytes,
            f"at least {layout.block_bytes}, one block; raise gpu_memory_utilization or "
            "kv_cache_bytes, or give the model more memory",
        )
    return num_bytes // layout.block_bytes


def _default_bytes(settings: WorkerSettings, model: LoadedModel) -> int:
    if model.device.type != "cuda":
        return DEFAULT_CPU_BYTES
    free, total = torch.cuda.mem_get_info(model.device)
    own = torch.cuda.memory_reserved(model.device)
    return share_left(free, total, own, settings.gpu_memory_utilization)


def share_left(free: int, total: int, own: int, utilization: float) -> int:
    """Bytes of a GPU that this worker may still take.

    Its share is of the whole GPU and it has used `own` of that, whatever its neighbours on the same
    GPU took; more than what is free it cannot have.
    """
    return max(0, min(free, int(total * utilization) - own))
