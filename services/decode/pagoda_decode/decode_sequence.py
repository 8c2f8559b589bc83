"""A sequence as the decode worker holds it: where its KV comes from."""

from dataclasses import dataclass

from pagoda.rpc.v1 import generate_pb2
from pagoda_worker.kv_transfer.leases import Lease
from pagoda_worker.sequences import LiveSequence


@dataclass(slots=True, eq=False)
class DecodeSequence(LiveSequence):
    """One sequence that is decoded here.

    Attributes:
        prefill_worker_id: where the router wants the prefill; empty: here.
        message: as it came, for that worker; None once it was sent, or if none is.
        lease: promise to that worker.
        fallback_reason: why the prefill planned elsewhere happened here.
    """

    prefill_worker_id: str = ""
    message: generate_pb2.GenerateRequest | None = None
    lease: Lease | None = None
    fallback_reason: str = ""

    @property
    def is_local_prefill(self) -> bool:
        """Whether it is prefilled here as planned, not as a fallback."""
        return not self.prefill_worker_id
