"""Pagoda's engine: models, scheduler, KV blocks, sampling. Knows no network and no tokenizer."""

from pagoda.engine.cache.block_pool import OnEvict
from pagoda.engine.cache.kv_cache import KvCache, KvLayout
from pagoda.engine.config import EngineConfig
from pagoda.engine.engine import Engine
from pagoda.engine.errors import (
    BlockPoolError,
    CheckpointError,
    EngineError,
    InvalidConfigError,
    InvalidSequenceError,
    QueueFullError,
    SequenceStateError,
    UnsupportedModelError,
)
from pagoda.engine.load import EngineLoad
from pagoda.engine.models.model_folder import LoadedModel, load_model
from pagoda.engine.sampling_params import SamplingParams
from pagoda.engine.scheduler.sequence_blocks import BlockHasher
from pagoda.engine.sequence_request import KvSource, SequenceRequest
from pagoda.engine.step_result import (
    ComputedBlocks,
    ComputedLayers,
    FinishReason,
    Reservation,
    SequenceOutput,
    StepResult,
    StepStats,
    TokenLogprobs,
)
from pagoda.engine.token_mask import TokenMask
from pagoda.engine.validation import check_request

__all__ = [
    "BlockHasher",
    "BlockPoolError",
    "CheckpointError",
    "ComputedBlocks",
    "ComputedLayers",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLoad",
    "FinishReason",
    "InvalidConfigError",
    "InvalidSequenceError",
    "KvCache",
    "KvLayout",
    "KvSource",
    "LoadedModel",
    "OnEvict",
    "QueueFullError",
    "Reservation",
    "SamplingParams",
    "SequenceOutput",
    "SequenceRequest",
    "SequenceStateError",
    "StepResult",
    "StepStats",
    "TokenLogprobs",
    "TokenMask",
    "UnsupportedModelError",
    "check_request",
    "load_model",
]
