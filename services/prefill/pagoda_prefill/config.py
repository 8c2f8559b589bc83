"""Settings of the prefill worker."""

from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagoda_worker.settings import WorkerSettings


class PrefillSettings(WorkerSettings):
    """What `python -m pagoda_prefill` reads, beside the common settings."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_PREFILL_")

    kv_transfer: Literal["host", "nixl", "grpc"] = Field(
        "host",
        description="How decode workers get KV. host: those on this host read it from the pool, by "
        "CUDA IPC or, on CPU, shared memory; nixl: all read it from the pool by NIXL (`pip install "
        "pagoda-worker[nixl]`); grpc: in messages, which is also how it comes to those who cannot "
        "read the pool",
    )
