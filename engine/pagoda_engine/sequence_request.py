"""What a caller hands to the engine: one token stream to compute. Knows no text and no network."""

import enum
import math
from dataclasses import dataclass

from pagoda_engine.sampling_params import SamplingParams
from pagoda_engine.token_mask import TokenMask


class KvSource(enum.Enum):
    """Where the KV of prompt tokens that are not cached here comes from."""

    COMPUTE = "compute"  # the engine prefills them itself
    IMPORT = "import"  # the caller writes blocks first, then calls `Engine.import_finished`
    HANDOVER = "handover"  # as IMPORT; of all tokens, so only blocks that are read are reserved


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence. Immutable; the engine keeps its own state beside it.

    Attributes:
        sequence_id: unique among the sequences this engine holds.
        prompt_token_ids: at least one.
        block_hashes: one for each full prompt block, chained from ``cache_root`` (16 bytes each).
        cache_root: parent hash of the first block; covers everything that makes KV reusable, tenant
            salt and the adapter's digest included.
        sampling: see SamplingParams.
        output_token_ids: output tokens that an earlier attempt delivered already; the engine goes
            on after them.
        kv_source: IMPORT and HANDOVER make the engine stop after reserving blocks (see
            `StepResult.reserved`) and wait.
        prefill_only: finish after one sampled token and keep the blocks until `Engine.release`, so
            that they can be sent to another worker.
        first_export_block: of a `prefill_only` sequence the first block that will be sent; those
            before it may be given back as soon as no query to come sees their tokens.
        token_mask: which tokens may come next; None for all. Its sequence is in every other step at
            most where steps overlap, since each of its tokens must be known before the next. An
            error of it ends the sequence with INVALID.
        priority: of one tenant's sequences who has the lower number goes first; among equal ones
            who must end sooner, then the older. Those above 1000 are in the background: behind all
            others.
        deadline: until which it is of use, by its caller's clock; ended by that, not by the engine.
        tenant: whose it is; tenants share an engine fairly. Opaque.
        weight: of its tenant: one of weight 2 gets twice what one of weight 1 gets beside it.
        adapter: digest of the loaded LoRA adapter that computes it; empty: none, the model alone.
    """

    sequence_id: str
    prompt_token_ids: tuple[int, ...]
    block_hashes: tuple[bytes, ...]
    cache_root: bytes
    sampling: SamplingParams
    output_token_ids: tuple[int, ...] = ()
    kv_source: KvSource = KvSource.COMPUTE
    prefill_only: bool = False
    first_export_block: int = 0
    token_mask: TokenMask | None = None
    priority: int = 0
    deadline: float = math.inf
    tenant: bytes = b""
    weight: float = 1.0
    adapter: bytes = b""
