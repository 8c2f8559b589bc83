"""The settings that prefill and decode workers share. Imports no torch: the CLI documents them.

Each service subclasses `WorkerSettings` with its own prefix and adds what only it has.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from pagoda_runtime.configuration.addresses import endpoint_address
from pagoda_runtime.configuration.settings import ServiceSettings
from pagoda_runtime.configuration.values import Seconds


class WorkerSettings(ServiceSettings):
    """Limits and addresses of one worker."""

    worker_id: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="Name of this worker; empty: drawn at start. `pagoda up` adds -1, -2, ... "
        "where it starts several",
    )
    health_host: str = Field("127.0.0.1", description="Address of /healthz, /readyz and /metrics")
    health_port: int | None = Field(
        None, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics; empty: none"
    )
    kvstore_endpoint: Annotated[str, AfterValidator(endpoint_address)] = Field(
        "", description="host:port of this host's kvstore (gRPC); empty: no lower cache tiers"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if there is one")
    num_threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads of one forward; 0: torch's own choice, but no more than the CPU "
        "quota of a container or control group has time for",
    )
    cpu_niceness: int = Field(
        0,
        ge=0,
        le=19,
        description="Niceness of the threads that compute on a CPU, so that those who pass tokens "
        "on come first; `pagoda up` sets 10. In containers, CPU shares do it",
    )
    processor_table: str = Field(
        "",
        description="File in which workers of this machine say when they compute, so that whoever "
        "does gets the processors of those that idle; empty, or with num_threads: none is shared. "
        "`pagoda up` names one.",
    )
    block_size: int = Field(
        16, ge=1, le=256, description="Tokens per KV block; equal on all workers"
    )
    num_blocks: int = Field(
        0, ge=0, le=2**31 - 1, description="KV blocks in the pool; 0: from kv_cache_bytes"
    )
    kv_cache_bytes: int = Field(
        0,
        ge=0,
        description="Bytes of the KV pool; 0: on CPU one longest sequence within 1/8 of memory, "
        "256 MiB at least, or 1/4 of memory if that is less; else gpu_memory_utilization",
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="This worker's share of the whole GPU: weights, KV, steps and graphs together; "
        "the shares of workers on one GPU add up to 1 at most",
    )
    max_model_len: int = Field(
        0,
        ge=0,
        description="Prompt and output tokens of one sequence at most, and room for as many is "
        "required; more than the model's own limit counts as that limit. 0: the model's own limit, "
        "or what the KV pool holds if that is less",
    )
    max_num_seqs: int = Field(
        0,
        ge=0,
        le=65536,
        description="Sequences in one step at most; 0: 64 on CPU, on a GPU 256, or down to 64 "
        "where the largest step would take more than a quarter of the memory beside the weights",
    )
    max_num_batched_tokens: int = Field(
        0,
        ge=0,
        le=1 << 24,
        description="New tokens in one step at most; 0: 512 on CPU, on a GPU 8192, or down to 512 "
        "as for the sequences",
    )
    enforce_eager: bool = Field(
        False, description="On a GPU: launch every kernel from the host, capture no graphs"
    )
    graph_batch_sizes: tuple[int, ...] = Field(
        (),
        description="On a GPU: numbers of decodes that get a graph, ascending, a proposed token "
        "counted as one; each takes memory and start-up time; []: chosen up to max_num_seqs",
    )
    num_layer_groups: int = Field(
        0,
        ge=0,
        description="Parts in which the KV of a prompt is sent while the next layers compute; "
        "0: 4 on a GPU, 1 on CPU",
    )
    max_num_waiting: int = Field(256, ge=1, description="Sequences waiting for admission at most")
    drain_seconds: Seconds = Field(
        30.0,
        ge=0,
        description="After SIGTERM: time for running sequences to finish; `pagoda up` sets 2",
    )
    write_through_bytes: int = Field(
        64 * 2**20,
        ge=0,
        description="KV waiting to be written to the kvstore at most; 0: write none",
    )
    write_through: Literal["all", "reused"] = Field(
        "reused",
        description="Blocks written to the kvstore at once: all, which costs prompts time, or "
        "those used again (the others when no worker of the host computes)",
    )
    step_trace_interval: int = Field(
        1000, ge=0, description="One step in this many becomes a trace of its own; 0: none"
    )

    @field_validator("graph_batch_sizes")
    @classmethod
    def _check_graph_batch_sizes(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
            raise ValueError("must be ascending numbers of at least 1, such as [1, 2, 4, 8]")
        return sizes
