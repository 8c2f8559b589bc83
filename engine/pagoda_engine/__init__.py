"""Pagoda's engine: models, scheduler, KV blocks, sampling. Knows no network and no tokenizer.

Here is what starts and runs an engine; how the bytes of its blocks travel is said by
`pagoda_engine.cache`.
"""

from pagoda_engine.adapters.adapter import Adapter
from pagoda_engine.adapters.adapter_folder import read_adapter
from pagoda_engine.adapters.adapter_slots import AdapterSlots
from pagoda_engine.adapters.adapter_table import AdapterTable
from pagoda_engine.cache.block_pool import OnEvict
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.config import EngineConfig
from pagoda_engine.engine import Engine
from pagoda_engine.engine_load import EngineLoad
from pagoda_engine.errors import (
    AdapterError,
    AdapterNotLoadedError,
    BlockPoolError,
    CheckpointError,
    EngineError,
    InvalidConfigError,
    InvalidSequenceError,
    MemoryBudgetError,
    NoAdapterSlotError,
    QueueFullError,
    SequenceStateError,
    TokenMaskError,
    UnsupportedModelError,
)
from pagoda_engine.models.model_folder import LoadedModel, load_model
from pagoda_engine.sampling.beam_search import Hypothesis
from pagoda_engine.sampling.token_logprobs import TokenLogprobs
from pagoda_engine.sampling_params import BeamSearchParams, EarlyStopping, SamplingParams
from pagoda_engine.scheduler.limits import Limits
from pagoda_engine.scheduler.resumption import MatchLower, Preemption, Resumption
from pagoda_engine.scheduler.sequence_blocks import BlockHasher
from pagoda_engine.scheduler.step_cost import StepCost
from pagoda_engine.sequence_request import KvSource, SequenceRequest
from pagoda_engine.start_up.host_memory import give_back_freed
from pagoda_engine.start_up.load_engine import device_name, load_engine
from pagoda_engine.start_up.options import EngineOptions
from pagoda_engine.start_up.phases import StartUp
from pagoda_engine.step.layer_export import OnLayers
from pagoda_engine.step.result import (
    ComputedBlocks,
    ComputedLayers,
    FinishReason,
    Reservation,
    SequenceOutput,
    StepResult,
    StepStats,
)
from pagoda_engine.token_mask import TokenBits, TokenMask, has_token, token_bits
from pagoda_engine.validation import check_request

__all__ = [
    "Adapter",
    "AdapterError",
    "AdapterNotLoadedError",
    "AdapterSlots",
    "AdapterTable",
    "BeamSearchParams",
    "BlockHasher",
    "BlockPoolError",
    "CheckpointError",
    "ComputedBlocks",
    "ComputedLayers",
    "EarlyStopping",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLoad",
    "EngineOptions",
    "FinishReason",
    "Hypothesis",
    "InvalidConfigError",
    "InvalidSequenceError",
    "KvCache",
    "KvLayout",
    "KvSource",
    "Limits",
    "LoadedModel",
    "MatchLower",
    "MemoryBudgetError",
    "NoAdapterSlotError",
    "OnEvict",
    "OnLayers",
    "Preemption",
    "QueueFullError",
    "Reservation",
    "Resumption",
    "SamplingParams",
    "SequenceOutput",
    "SequenceRequest",
    "SequenceStateError",
    "StartUp",
    "StepCost",
    "StepResult",
    "StepStats",
    "TokenBits",
    "TokenLogprobs",
    "TokenMask",
    "TokenMaskError",
    "UnsupportedModelError",
    "check_request",
    "device_name",
    "give_back_freed",
    "has_token",
    "load_engine",
    "load_model",
    "read_adapter",
    "token_bits",
]
