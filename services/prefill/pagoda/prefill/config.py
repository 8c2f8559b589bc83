"""Settings of the prefill worker."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagoda.worker.settings import WorkerSettings


class PrefillSettings(WorkerSettings):
    """What `python -m pagoda.prefill` reads, beside the common settings."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_PREFILL_")

    shared_memory_bytes: int = Field(
        64 * 2**20,
        ge=0,
        description="Shared memory for KV on its way to workers on this host; 0: none, gRPC only",
    )
