"""Settings of the decode worker."""

import socket

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pagoda_runtime.configuration.values import Seconds
from pagoda_worker.settings import WorkerSettings


class DecodeSettings(WorkerSettings):
    """What `python -m pagoda_decode` reads, beside the common settings."""

    model_config = SettingsConfigDict(env_prefix="PAGODA_DECODE_")

    grpc_host: str = Field("127.0.0.1", description="Address that takes KV blocks (gRPC)")
    grpc_port: int = Field(0, ge=0, le=65535, description="Its port; 0: any free one")
    advertise_host: str = Field(
        "",
        description="Host that prefill workers reach this worker by; empty: grpc_host, or this "
        "machine's own address if that listens everywhere",
    )
    lease_seconds: Seconds = Field(
        60.0,
        gt=0,
        description="Reserved blocks wait this long for a prefill worker's next sign of life",
    )

    @property
    def advertised_host(self) -> str:
        """The host that leases name: never a wildcard, by which a producer would reach itself."""
        if self.advertise_host:
            return self.advertise_host
        if self.grpc_host in ("0.0.0.0", "::"):
            return socket.gethostbyname(socket.gethostname())
        return self.grpc_host
