"""A prefill worker in a process of its own, for the cluster of a test."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from support.worker_cluster import SMALL, Cluster

WORKER_ID = "prefill-process"


@contextlib.asynccontextmanager
async def prefill_process(
    cluster: Cluster, *arguments: str, **settings: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `WORKER_ID` and wait until it takes prompts; `arguments` replace its module."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(arguments or ("-m", "pagoda_prefill")),
        env=_environment(cluster, SMALL | settings),
    )
    try:
        await cluster.status(WORKER_ID, lambda status: True)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _environment(cluster: Cluster, settings: dict[str, Any]) -> dict[str, str]:
    common = cluster.common
    values = {f"PAGODA_PREFILL_{name}".upper(): str(value) for name, value in settings.items()}
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("PAGODA_")},
        **values,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PAGODA_PREFILL_WORKER_ID": WORKER_ID,
        "PAGODA_NATS_URL": common.nats_url,
        "PAGODA_NATS_TOKEN": common.nats_token.get_secret_value(),
        "PAGODA_CLUSTER_TOKEN": common.cluster_token.get_secret_value(),
        "PAGODA_MODEL": common.model,
        "PAGODA_DTYPE": common.dtype,
        "PAGODA_QUANTIZATION": common.quantization,
        "PAGODA_KV_CACHE_DTYPE": common.kv_cache_dtype,
    }
