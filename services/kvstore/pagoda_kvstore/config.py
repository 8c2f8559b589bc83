"""Settings of the kvstore: PAGODA_KVSTORE_*."""

from pathlib import Path

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from pagoda_runtime.configuration.settings import ServiceSettings
from pagoda_runtime.configuration.values import Seconds


class KvstoreSettings(ServiceSettings):
    """What one kvstore process may use and where it listens."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_KVSTORE_")

    grpc_host: str = Field("127.0.0.1", description="Address of the gRPC listener")
    grpc_port: int = Field(
        7105, ge=0, le=65535, description="Port of the gRPC listener; 0: any free one"
    )
    health_host: str = Field("127.0.0.1", description="Address of /healthz, /readyz and /metrics")
    health_port: int = Field(
        8105, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics"
    )
    cpu_bytes: int = Field(
        256 << 20,
        ge=0,
        description="Hard budget of the CPU tier, bytes; refused where the memory limit of the "
        "container or control group is below that, the write queue and 128 MiB",
    )
    nvme_bytes: int = Field(
        1 << 30, ge=0, description="Hard budget of the NVMe tier, bytes; 0: no NVMe tier"
    )
    nvme_dir: Path | None = Field(
        None, description="Folder of the NVMe tier; empty: kvstore in PAGODA_HOME"
    )
    nvme_folders: int = Field(
        1,
        ge=1,
        le=64,
        description="Replicas that may share one disk: each takes the first free folder of "
        "nvme_dir, nvme_dir-2, ... up to this number, and has nvme_bytes there",
    )
    segment_bytes: int = Field(64 << 20, ge=4096, description="Largest segment file, bytes")
    write_queue_bytes: int = Field(
        64 << 20,
        ge=0,
        description="Blocks waiting to be written to NVMe, bytes; beyond it they are dropped",
    )
    event_interval_seconds: float = Field(
        0.025, gt=0, le=0.05, description="Changes within this time are published together"
    )
    snapshot_interval_seconds: Seconds = Field(
        60.0, gt=0, description="The whole content is published again after this time"
    )
    flush_seconds: Seconds = Field(
        8.0,
        gt=0,
        description="Time to write what is queued for NVMe at shutdown; `pagoda up` sets 2",
    )

    @model_validator(mode="after")
    def _segments_fit(self) -> "KvstoreSettings":
        if self.nvme_bytes and self.nvme_bytes < 2 * self.segment_bytes:
            raise ValueError(
                f"PAGODA_KVSTORE_NVME_BYTES is {self.nvme_bytes}, must be 0 or at least twice "
                f"PAGODA_KVSTORE_SEGMENT_BYTES ({self.segment_bytes}): "
                "space is taken back by whole segments"
            )
        return self
