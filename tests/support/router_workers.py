"""Workers, requests and policies for tests, in round numbers: costs can be worked out by hand."""

import dataclasses
from typing import Any

from pagoda_router.placement.candidate import RoutingRequest
from pagoda_router.placement.planner import PlacementSettings
from pagoda_router.workers.snapshot import Speeds, WorkerRole, WorkerSnapshot

IDENTITY = b"identity-0123456"

SPEEDS = Speeds(
    prefill_tokens_per_second=1000.0,  # 1 ms a token
    step_base_ms=10.0,
    step_per_sequence_ms=2.0,
    step_per_context_token_ms=0.01,
    transfer_bytes_per_second=1e6,  # 1 ms a block
    fetch_bytes_per_second=1e6,  # 1 ms a block, of 16 ms to compute
)

SETTINGS = PlacementSettings(
    local_prefill="off",
    expected_output_tokens=10,
    fetch_base_ms=2.0,
    load_factor=1.5,
    min_load_bound=4,
)


def make_worker(worker_id: str, role: WorkerRole, **changes: Any) -> WorkerSnapshot:
    worker = WorkerSnapshot(
        worker_id=worker_id,
        epoch="e1",
        role=role,
        is_ready=True,
        host_id="host-a",
        model="demo",
        kv_identity=IDENTITY,
        block_size=16,
        block_bytes=1000,
        max_model_len=4096,
        num_waiting=0,
        num_running=0,
        num_waiting_tokens=0,
        num_blocks=1000,
        num_free_blocks=1000,
        num_context_tokens=0,
        max_num_seqs=8,
        max_num_waiting=16,
        speeds=SPEEDS,
    )
    return dataclasses.replace(worker, **changes)


def prefill(worker_id: str, **changes: Any) -> WorkerSnapshot:
    return make_worker(worker_id, WorkerRole.PREFILL, **changes)


def decode(worker_id: str, **changes: Any) -> WorkerSnapshot:
    return make_worker(worker_id, WorkerRole.DECODE, **changes)


def make_request(num_prompt_tokens: int = 160, **changes: Any) -> RoutingRequest:
    request = RoutingRequest(
        request_id="r1",
        sequence_index=0,
        model="demo",
        kv_identity=IDENTITY,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=100,
        block_hashes=tuple(bytes([i]) * 16 for i in range(num_prompt_tokens // 16)),
    )
    return dataclasses.replace(request, **changes)
