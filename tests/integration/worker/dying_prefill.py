"""A prefill worker that dies by SIGKILL in the middle of its second push; run as a process."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pagoda_prefill.config import PrefillSettings
from pagoda_prefill.server import serve
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.process.service import load_or_exit, run_service
from pagoda_worker.kv_transfer.base import LeaseTarget
from pagoda_worker.kv_transfer.grpc_producer import GrpcProducer, GrpcPush


class DyingPush(GrpcPush):
    async def send(self, first_block: int, block_ids: Sequence[int], **options: Any) -> None:
        if self._producer.num_pushes == 2 and self._num_bytes:
            os.kill(os.getpid(), signal.SIGKILL)
        await super().send(first_block, block_ids, **options)


class DyingProducer(GrpcProducer):
    num_pushes = 0

    def push(self, target: LeaseTarget, *, timeout_seconds: float) -> GrpcPush:
        self.num_pushes += 1
        return DyingPush(self, target, timeout_seconds)


if __name__ == "__main__":
    settings = load_or_exit(PrefillSettings)
    sys.exit(
        run_service(
            "prefill",
            load_or_exit(CommonSettings),
            lambda context: serve(context, settings, producer_class=DyingProducer),
            health_port=None,
            instance_id=settings.worker_id,
        )
    )
