"""Pagoda's engine: models, scheduler, KV blocks, sampling. Knows no network and no tokenizer."""

from pagoda_engine.cache.block_pool import OnEvict
from pagoda_engine.cache.kv_cache import KvCache, KvLayout
from pagoda_engine.config import EngineConfig
from pagoda_engine.engine import Engine
from pagoda_engine.errors import (
    BlockPoolError,
    CheckpointError,
    EngineError,
    InvalidConfigError,
    InvalidSequenceError,
    QueueFullError,
    SequenceStateError,
    UnsupportedModelError,
)
from pagoda_engine.load import EngineLoad
from pagoda_engine.models.model_folder import LoadedModel, load_model
from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.scheduler.sequence_blocks import BlockHasher
from pagoda_engine.sequence_request import KvSource, SequenceRequest
from pagoda_engine.step.result import (
    ComputedBlocks,
    ComputedLayers,
    FinishReason,
    Reservation,
    SequenceOutput,
    StepResult,
    StepStats,
    TokenLogprobs,
)
from pagoda_engine.token_mask import TokenMask
from pagoda_engine.validation import check_request

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
